"""One compiled call a step: every row's token goes through its sequence's state, all of it in flat arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from checkengine.detectors.salad.columns import (
    CALM,
    CLASS,
    COUNT,
    FORM,
    LAST_FORM,
    LAST_TOKEN,
    LOGITS,
    MEAN,
    NOT_TOLD,
    ODD,
    RECENT_PLACES,
    REMEMBER,
    SHARES,
    SQUARE,
    STATES,
    TOKEN,
    TOLD,
    TRANSITIONS,
    WEIGHT,
    WORDS,
    checked_sums,
    within,
)
from checkengine.detectors.salad.marks import mark
from checkengine.detectors.salad.sense import word
from checkengine.detectors.salad.transitions import NEIGHBOURS_MOST, add, follow, state_of

STRANGE_NATS = 2.5
"""Of two parts of a word that the tokenizer would have cut elsewhere: 2.4 to 4.7 % of the tokens of salad, 0.04 % of
SmolLM2's own at temperature 0.7 and 0.2 % at 1."""
LOGITS_MOST = 10.0
"""Nats that entropy tells at most, and never more than the text itself does: alone it reports nothing."""
ENTROPY_SHIFT = 1.2
"""Standard deviations that salad lies above the model's mean entropy: a Gaussian's likelihood ratio."""
ENTROPY_STEEPEST = 1.5
PRIOR_MEAN, PRIOR_DEVIATION, PRIOR_WEIGHT = 1.1, 1.2, 256.0
"""Of the entropy of a healthy model in nats, before it has been measured, worth so many tokens."""
MEMORY_TOKENS = 65536.0
"""The baseline follows the model over so many tokens."""
CALM_TEXT = 6.0
"""Nats below which a token's entropy is taken for a healthy one."""


@within
def push(
    token: Any, entropy: Any, strange: Any, known: Any, whole: Any, real: Any, memory: Any, recent: Any, shared: Any
) -> Any:
    """One token of one sequence; returns all evidence in nats. `strange` is 1 where the tokenizer cuts elsewhere;
    `entropy` is negative where it is not known."""
    size = len(known.tokens) - 1
    row = known.tokens[token] if 0 <= token < size else known.tokens[size]
    whole[COUNT] += 1
    pair, before = whole[LAST_FORM] + row[CLASS], whole[LAST_TOKEN]
    state = state_of(row, before, token, whole[COUNT], known.tokens, known.counts, known.logs, recent)
    healthy = follow(pair * STATES + state, known.healthy, real, SHARES)
    salad = follow(row[CLASS] * STATES + state, known.salad, real, SHARES + known.healthy.shape[1])
    weight = np.float32(math.log(salad / healthy)) - real[CALM] + np.float32(STRANGE_NATS if strange else 0.0)
    most = known.ceiling[pair] + np.float32(NEIGHBOURS_MOST if state < 2 * NOT_TOLD else 0.0)
    add(weight, most, pair, token, whole, real, memory)
    mark(row, token, whole, real)
    word(row, known.word_hashes, known.word_numbers, known.word_pairs, whole, real)
    whole[LAST_FORM], whole[LAST_TOKEN] = row[FORM], token
    text = real[TRANSITIONS] + real[ODD] + real[WORDS]
    if entropy >= 0.0:
        surprise(entropy, text, real, shared)
    return text + min(real[LOGITS], text)


@within
def surprise(entropy: Any, text: Any, real: Any, shared: Any) -> None:
    """Entropy above the model's own mean, which follows it as long as `text` tells of nothing."""
    deviation = math.sqrt(max(shared[SQUARE] - shared[MEAN] * shared[MEAN], 0.05))
    ratio = ENTROPY_SHIFT * ((entropy - shared[MEAN]) / deviation - 0.5 * ENTROPY_SHIFT)
    told = real[LOGITS] + np.float32(min(max(ratio, -ENTROPY_STEEPEST), ENTROPY_STEEPEST))
    real[LOGITS] = min(max(told, np.float32(0.0)), np.float32(LOGITS_MOST))
    if text < CALM_TEXT:
        step = 1.0 / (shared[WEIGHT] + 1.0)
        shared[MEAN] += step * (entropy - shared[MEAN])
        shared[SQUARE] += step * (entropy * entropy - shared[SQUARE])
        shared[WEIGHT] = min(shared[WEIGHT] + 1.0, MEMORY_TOKENS)


@checked_sums
def push_batch(
    slots: Any,
    ids: Any,
    entropies: Any,
    strange: Any,
    threshold: Any,
    fired: Any,
    known: Any,
    wholes: Any,
    reals: Any,
    memories: Any,
    recents: Any,
    shared: Any,
) -> int:
    """A token of each slot, in order; fills `fired` with the rows that reach the threshold for the first time."""
    count = 0
    for row in range(len(slots)):
        slot = slots[row]
        if slot < 0 or wholes[slot, TOLD]:
            continue
        entropy = entropies[row] if len(entropies) else np.float32(-1.0)
        odd_join = strange[row] if len(strange) else np.uint8(0)
        state = (wholes[slot], reals[slot], memories[slot], recents[slot])
        if push(ids[row], entropy, odd_join, known, state[0], state[1], state[2], state[3], shared) >= threshold:
            wholes[slot, TOLD] = 1
            fired[count] = row
            count += 1
    return count


@checked_sums
def scan(ids: Any, first: Any, highest: Any, fresh_whole: Any, fresh_real: Any, known: Any) -> None:
    """Benchmarks: highest evidence of every text, shape (texts,)."""
    whole, real = fresh_whole.copy(), fresh_real.copy()
    memory, recent = np.zeros((REMEMBER, 2), np.int32), np.zeros((RECENT_PLACES, 2), np.int32)
    shared, unknown = np.zeros(3), np.float32(-1.0)
    for text in range(len(first) - 1):
        whole[:], real[:] = fresh_whole, fresh_real
        recent[:, TOKEN] = -1
        for at in range(first[text], first[text + 1]):
            evidence = push(ids[at], unknown, np.uint8(0), known, whole, real, memory, recent, shared)
            highest[text] = max(highest[text], evidence)
