"""One compiled call a step: every row's token goes through its sequence's state, all of it in flat arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from checkengine.detectors.salad.columns import (
    CALM,
    CHANNELS,
    CLASS,
    COUNT,
    EDGE,
    EVIDENCE,
    FIRST_PIECE,
    FORM,
    LAST_FORM,
    LAST_PIECE,
    LAST_TOKEN,
    LOGITS,
    LOOKS,
    MEAN,
    NEIGHBOURS,
    ODD,
    REMEMBER,
    SHARES,
    SQUARE,
    TELLS,
    TOLD,
    WEIGHT,
    WORDS,
    checked_sums,
)
from checkengine.detectors.salad.marks import mark
from checkengine.detectors.salad.neighbours import is_new
from checkengine.detectors.salad.sense import word
from checkengine.detectors.salad.transitions import add, follow, follow_both

STRANGE_NATS = 2.5
"""Of two parts of a word that the tokenizer would have cut elsewhere: 2.4 to 4.7 % of the tokens of salad, 0.04 % of
SmolLM2's own at temperature 0.7 and 0.2 % at 1."""
NEWS_MOST = 2.5
"""Nats that it tells at most whether two pieces were ever neighbours in healthy text."""
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


@checked_sums
def push(
    slot: Any,
    token: Any,
    entropy: Any,
    strange: Any,
    known: Any,
    wholes: Any,
    reals: Any,
    memories: Any,
    shared: Any,
) -> Any:
    """One token of one sequence. `strange` is 1 where the tokenizer cuts elsewhere; `entropy` is negative where it is
    not known. Returns nats by the looks of tokens, and nats of everything else."""
    whole, real, memory = wholes[slot], reals[slot], memories[slot]
    size = len(known.tokens) - 1
    row = known.tokens[token] if 0 <= token < size else known.tokens[size]
    whole[COUNT] += 1
    odd_join = np.float32(STRANGE_NATS if strange else 0.0)
    looks(row, token, odd_join, known, whole, real, memory)
    neighbours(row, token, odd_join, known, whole, real, memory)
    mark(row, token, whole, real)
    word(row, known, whole, real)
    whole[LAST_FORM], whole[LAST_TOKEN] = row[FORM], token
    text = real[EVIDENCE + NEIGHBOURS] + real[ODD] + real[WORDS]
    if entropy >= 0.0:
        surprise(entropy, max(text, real[EVIDENCE + LOOKS]), real, shared)
    return with_logits(real[EVIDENCE + LOOKS], real), with_logits(text, real)


@checked_sums
def with_logits(text: Any, real: Any) -> Any:
    return text + min(real[LOGITS], text)


@checked_sums
def looks(row: Any, token: Any, odd_join: Any, known: Any, whole: Any, real: Any, memory: Any) -> None:
    """The channel over few broad kinds, for what a model's own corrupted attention writes."""
    kinds = known.looks.shape[1]
    if kinds == 0:
        return
    pair = whole[LAST_FORM] + row[CLASS]
    healthy = follow(pair, known.looks, real[SHARES : SHARES + kinds])
    weight = known.looks_salad[row[CLASS]] - np.float32(math.log(healthy)) - real[CALM + LOOKS] + odd_join
    add(LOOKS, weight, np.float32(0.0), pair, token, known.ceiling, whole, real, memory)


@checked_sums
def neighbours(row: Any, token: Any, odd_join: Any, known: Any, whole: Any, real: Any, memory: Any) -> None:
    """The channel over many kinds, which looks too whether the two pieces were ever neighbours."""
    size, pair = len(known.tokens) - 1, whole[LAST_FORM] + row[CLASS]
    first = SHARES + known.looks.shape[1]
    split = first + known.healthy.shape[1]
    before, news = whole[LAST_TOKEN], -1
    if len(known.seen) and 0 <= before < size and row[EDGE] & known.tokens[before, EDGE] & TELLS:
        news = is_new(known.tokens[before, LAST_PIECE], row[FIRST_PIECE], known.seen)
    salad, salad_both = follow_both(row[CLASS], known.salad, known.salad_new, news, real[split:])
    healthy, healthy_both = follow_both(pair, known.healthy, known.healthy_new, news, real[first:split])
    weight = np.float32(math.log(salad / healthy))
    told = np.float32(0.0)
    if news >= 0:
        both = np.float32(math.log(salad_both / healthy_both))
        told = min(max(both - weight, np.float32(-NEWS_MOST)), np.float32(NEWS_MOST))
    weight += odd_join - real[CALM + NEIGHBOURS]
    add(NEIGHBOURS, weight, told, pair, token, known.ceiling, whole, real, memory)


@checked_sums
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
    limits: Any,
    fired: Any,
    known: Any,
    wholes: Any,
    reals: Any,
    memories: Any,
    shared: Any,
) -> int:
    """A token of each slot, in order; fills `fired` with the rows that reach a limit for the first time."""
    count = 0
    for row in range(len(slots)):
        slot = slots[row]
        if slot < 0 or wholes[slot, TOLD]:
            continue
        entropy = entropies[row] if len(entropies) else np.float32(-1.0)
        odd_join = strange[row] if len(strange) else np.uint8(0)
        by_looks, text = push(slot, ids[row], entropy, odd_join, known, wholes, reals, memories, shared)
        if by_looks >= limits[0] or text >= limits[1]:
            wholes[slot, TOLD] = 1
            fired[count] = row
            count += 1
    return count


@checked_sums
def scan(ids: Any, first: Any, highest: Any, fresh_whole: Any, fresh_real: Any, known: Any) -> None:
    """Benchmarks: highest evidence of every text; `highest` has shape (texts, 2): by looks, and by everything else."""
    wholes, reals = fresh_whole.copy().reshape(1, -1), fresh_real.copy().reshape(1, -1)
    memories = np.zeros((1, CHANNELS, REMEMBER, 2), np.int32)
    shared, unknown = np.zeros(3), np.float32(-1.0)
    for text in range(len(first) - 1):
        wholes[0], reals[0] = fresh_whole, fresh_real
        for at in range(first[text], first[text + 1]):
            by_looks, other = push(0, ids[at], unknown, np.uint8(0), known, wholes, reals, memories, shared)
            highest[text, 0] = max(highest[text, 0], by_looks)
            highest[text, 1] = max(highest[text, 1], other)
