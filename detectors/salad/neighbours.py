"""How much two pieces of text like to be neighbours: pairs of pieces that healthy text held, and how often.

The counts lie in buckets of four bytes, by a hash of the pair: five bits that tell pairs of one bucket apart (never 0),
three bits of how often. About one pair in eighteen that was never counted is taken for one that was.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.salad.columns import checked, within

BUCKET = 4
COUNT_BITS, TAGS = 3, 31
OFTEN = (2, 3, 5, 10, 20, 60, 200, 1000)
"""What counts are rounded down to."""
OFTEN_NATS = tuple(math.log(count) for count in OFTEN)
SEEN_EDGES = (-1.0, 0.5, 2.0, 4.0)
"""Nats by which a pair is more frequent than its pieces make it, between levels 0 to 4..."""
COUNTED = 5
"""Levels of pairs that were counted are below."""
UNSEEN_EDGES = (-4.6, -2.3, 0.0)
"""... and log of how often a pair that was never counted should have been, between levels 5 to 8."""


@within
def mixed(before: Any, piece: Any) -> Any:
    found = np.uint64((np.int64(before) << 24) | piece) * np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(29)
    return found * np.uint64(0xBF58476D1CE4E5B9)


@within
def level_of(before: Any, piece: Any, counts: Any, logs: Any) -> Any:
    """0 … 4 for a pair that was counted, from avoided to sought; 5 … 8 for others, by how much they should have been.

    `logs` are logarithms of pieces' shares of the text, each with half of the logarithm of its length.
    """
    drawn = mixed(before, piece)
    bucket = np.int64(drawn >> np.uint64(8)) & (len(counts) // BUCKET - 1)
    tag = np.uint8(1 + (drawn & np.uint64(0xFF)) % np.uint64(TAGS))
    expected = logs[before] + logs[piece]
    level = COUNTED
    for at in range(BUCKET * bucket, BUCKET * bucket + BUCKET):
        if counts[at] >> COUNT_BITS == tag:
            nats = OFTEN_NATS[counts[at] & 7] - expected
            level = 0
            for edge in SEEN_EDGES:
                level += nats > edge
            return level
    for edge in UNSEEN_EDGES:
        level += expected > edge
    return level


@checked
def levels_of(before: Any, pieces: Any, counts: Any, logs: Any, found: Any) -> None:
    """`level_of` of many pairs, into `found`."""
    for at in range(len(pieces)):
        found[at] = level_of(before[at], pieces[at], counts, logs)


@checked
def fill(before: Any, pieces: Any, often: Any, counts: Any) -> Any:
    """Puts pairs into the buckets, the most frequent first; returns how many found no place. `often` is an index of
    OFTEN."""
    lost = 0
    for row in range(len(pieces)):
        drawn = mixed(before[row], pieces[row])
        first = BUCKET * (np.int64(drawn >> np.uint64(8)) & (len(counts) // BUCKET - 1))
        tag = np.uint8(1 + (drawn & np.uint64(0xFF)) % np.uint64(TAGS))
        at = first
        while at < first + BUCKET and counts[at] and counts[at] >> COUNT_BITS != tag:
            at += 1
        if at == first + BUCKET:
            lost += 1
        elif not counts[at]:
            counts[at] = (tag << COUNT_BITS) | often[row]
    return lost


def piece_logs(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """What `level_of` wants of pieces that were counted so often, shape (pieces,)."""
    found: NDArray[np.float64] = np.log(counts + 1.0) - 0.5 * math.log(counts.sum() + 1.0)
    return found
