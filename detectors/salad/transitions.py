"""Evidence from neighbouring tokens, compiled: a sequential likelihood-ratio test (CUSUM, Page 1954).

Corrupted attention lets tokens follow each other nearly at random, so "responsible" is glued to "The", and a bracket
opens after a line break in the middle of a word. Each token adds log P(salad) - log P(healthy) of three things: its
class behind the class before (`token_classes`), whether the two pieces like to be neighbours, and whether it stood
here a short while ago, as words of a subject do. Healthy text is a mixture of kinds (prose, code, markup, base64 ...)
whose weights follow the sequence (fixed share, Herbster and Warmuth 1998) and begin with the prompt's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.salad.columns import (
    COUNT,
    EDGE,
    FIRST_PIECE,
    LAST_PIECE,
    NOT_TOLD,
    PLACE,
    RECENT,
    RECENT_PLACES,
    REMEMBER,
    REMEMBERED,
    START,
    STEEPEST,
    SWITCH,
    TELLS,
    TOKEN,
    TRANSITIONS,
    checked,
    within,
)
from checkengine.detectors.salad.neighbours import level_of

KEEP_SAME_PAIR, KEEP_SAME_TOKEN = 0.45, 0.2
"""What is left of evidence that repeats itself: structure that is odd but regular is no salad."""
NEIGHBOURS_MOST = 2.5
"""Nats that it adds to a pair's ceiling that its pieces can be judged."""


@within
def state_of(row: Any, before: Any, token: Any, place: Any, tokens: Any, counts: Any, logs: Any, recent: Any) -> Any:
    """2 · level of the neighbours, plus 1 where the token stood in the RECENT ones; it is put among these."""
    level = NOT_TOLD
    if 0 <= before < len(tokens) - 1 and row[EDGE] & tokens[before, EDGE] & TELLS:
        level = level_of(tokens[before, LAST_PIECE], row[FIRST_PIECE], counts, logs)
    at = (token ^ (token >> 8)) & (RECENT_PLACES - 1)
    known = recent[at, TOKEN] == token and place - recent[at, PLACE] <= RECENT
    recent[at, TOKEN], recent[at, PLACE] = token, place
    return 2 * level + (1 if known else 0)


@checked
def states_of(ids: Any, first: Any, tokens: Any, counts: Any, logs: Any, recent: Any, found: Any) -> None:
    """`state_of` the tokens of each text, ids[first[i]:first[i + 1]]; afterwards `recent` is that of the last text, as
    if its last token stood in place 0."""
    size = len(tokens) - 1
    for text in range(len(first) - 1):
        recent[:, TOKEN] = -1
        before = -1
        for at in range(first[text], first[text + 1]):
            token = ids[at]
            row = tokens[token] if 0 <= token < size else tokens[size]
            place = at + 1 - first[text + 1]
            found[at] = state_of(row, before, token, place, tokens, counts, logs, recent)
            before = token


@within
def follow(at: Any, known: Any, shares: Any, first: Any) -> Any:
    """P of known[at] under a mixture of kinds; the mixture's weights, from shares[first] on, move in place."""
    kinds = known.shape[1]
    total = np.float32(0.0)
    for kind in range(kinds):
        shares[first + kind] *= known[at, kind]
        total += shares[first + kind]
    scale, spread = np.float32(1.0 - SWITCH) / total, np.float32(SWITCH / kinds)
    for kind in range(kinds):
        shares[first + kind] = shares[first + kind] * scale + spread
    return total


@within
def add(weight: Any, most: Any, pair: Any, token: Any, whole: Any, real: Any, memory: Any) -> None:
    """Adds nats for salad, `most` at most and less where this pair of classes or this token was evidence already, or
    against it."""
    if weight > 0.0:
        if real[TRANSITIONS] > 0.0 and whole[COUNT] - whole[START] > REMEMBER:
            real[TRANSITIONS] = 0.0
        if real[TRANSITIONS] == 0.0:
            whole[START], whole[REMEMBERED] = whole[COUNT] - 1, 0
        real[TRANSITIONS] += min(weight, most) * remember(pair, token, whole, memory)
    elif real[TRANSITIONS] > 0.0:
        real[TRANSITIONS] = max(real[TRANSITIONS] + max(weight, np.float32(-STEEPEST)), np.float32(0.0))


@within
def remember(pair: Any, token: Any, whole: Any, memory: Any) -> Any:
    """What evidence of this pair and this token is still worth; they are kept."""
    known, kept = whole[REMEMBERED], np.float32(1.0)
    for at in range(known):
        if memory[at, 0] == pair:
            kept *= np.float32(KEEP_SAME_PAIR)
        if memory[at, 1] == token:
            kept *= np.float32(KEEP_SAME_TOKEN)
    if known < REMEMBER:
        memory[known, 0], memory[known, 1] = pair, token
        whole[REMEMBERED] = known + 1
    return kept
