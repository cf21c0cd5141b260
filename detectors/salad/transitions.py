"""Evidence from classes of neighbouring tokens, compiled: a sequential likelihood-ratio test (CUSUM, Page 1954).

Corrupted attention lets tokens follow each other nearly at random, so "responsible" is glued to "The", and a bracket
opens after a line break in the middle of a word. Healthy text is a mixture of kinds (prose, code, markup, base64 ...),
each with its own transitions, whose weights follow the sequence (fixed share, Herbster and Warmuth 1998) and begin
with the prompt's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.salad.columns import (
    COUNT,
    EVIDENCE,
    REMEMBER,
    REMEMBERED,
    START,
    STEEPEST,
    SWITCH,
    checked_sums,
)

KEEP_SAME_PAIR, KEEP_SAME_TOKEN = 0.6, 0.5
"""What is left of evidence that repeats itself: structure that is odd but regular is no salad."""


@checked_sums
def follow(at: Any, known: Any, shares: Any) -> Any:
    """Probability of a pair of classes under a mixture of kinds, known[at]; the mixture's weights move in place."""
    kinds = known.shape[1]
    total = np.float32(0.0)
    for kind in range(kinds):
        shares[kind] *= known[at, kind]
        total += shares[kind]
    scale, spread = np.float32(1.0 - SWITCH) / total, np.float32(SWITCH / kinds)
    for kind in range(kinds):
        shares[kind] = shares[kind] * scale + spread
    return total


@checked_sums
def follow_both(at: Any, known: Any, new: Any, news: Any, shares: Any) -> Any:
    """As `follow`, and the probability together with whether the pieces are new neighbours (`news` 1 or 0; -1: not
    known), new[at]."""
    kinds = known.shape[1]
    alone = total = np.float32(0.0)
    for kind in range(kinds):
        alone += shares[kind] * known[at, kind]
    if news < 0:
        total = alone
        for kind in range(kinds):
            shares[kind] *= known[at, kind]
    else:
        for kind in range(kinds):
            shares[kind] *= known[at, kind] * (new[at, kind] if news else np.float32(1.0) - new[at, kind])
            total += shares[kind]
    scale, spread = np.float32(1.0 - SWITCH) / total, np.float32(SWITCH / kinds)
    for kind in range(kinds):
        shares[kind] = shares[kind] * scale + spread
    return alone, total


@checked_sums
def let_go(channel: Any, whole: Any, real: Any) -> None:
    real[EVIDENCE + channel] = 0.0
    whole[REMEMBERED + channel] = 0


@checked_sums
def add(
    channel: Any,
    weight: Any,
    news: Any,
    pair: Any,
    token: Any,
    ceiling: Any,
    whole: Any,
    real: Any,
    memories: Any,
) -> None:
    """`weight`: nats of the pair of classes; `news`: what the pieces' being neighbours adds to them."""
    nats = max(weight, np.float32(-STEEPEST))
    if weight > 0.0 or news > 0.0:
        if real[EVIDENCE + channel] > 0.0 and whole[COUNT] - whole[START + channel] > REMEMBER:
            let_go(channel, whole, real)
        if real[EVIDENCE + channel] == 0.0:
            whole[START + channel] = whole[COUNT] - 1
            whole[REMEMBERED + channel] = 0
        same, again = remember(channel, pair, token, whole, memories)
        if weight > 0.0:
            nats = min(weight, ceiling[pair]) * same * again
        if news > 0.0:
            news *= again
    elif real[EVIDENCE + channel] == 0.0:
        return
    real[EVIDENCE + channel] += nats + news
    if real[EVIDENCE + channel] <= 0.0:
        let_go(channel, whole, real)


@checked_sums
def remember(channel: Any, pair: Any, token: Any, whole: Any, memories: Any) -> Any:
    """What evidence of this pair, and of this token, is still worth; they are kept."""
    memory, known = memories[channel], whole[REMEMBERED + channel]
    same, again = np.float32(1.0), np.float32(1.0)
    for at in range(known):
        if memory[at, 0] == pair:
            same *= np.float32(KEEP_SAME_PAIR)
        if memory[at, 1] == token:
            again *= np.float32(KEEP_SAME_TOKEN)
    if known < REMEMBER:
        memory[known, 0], memory[known, 1] = pair, token
        whole[REMEMBERED + channel] = known + 1
    return same, again
