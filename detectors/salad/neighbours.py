"""Pairs of pieces that were neighbours in healthy text, as a Bloom filter (1970)."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.salad.columns import checked

BLOOM_SHIFTS = (0, 20, 40)


@checked
def mixed(before: Any, token: Any) -> Any:
    found = np.uint64((np.int64(before) << 24) | token) * np.uint64(0x9E3779B97F4A7C15)
    found ^= found >> np.uint64(29)
    return found * np.uint64(0xBF58476D1CE4E5B9)


@checked
def is_new(before: Any, token: Any, seen: Any) -> int:
    """1 where the two pieces were never neighbours in the text that `seen` was filled with."""
    drawn, mask = mixed(before, token), np.uint64(8 * len(seen) - 1)
    for shift in BLOOM_SHIFTS:
        bit = (drawn >> np.uint64(shift)) & mask
        if not (seen[bit >> np.uint64(3)] >> (bit & np.uint64(7))) & np.uint8(1):
            return 1
    return 0


@checked
def fill_seen(before: Any, tokens: Any, seen: Any) -> None:
    """Puts pairs into the filter, whose size is a power of two."""
    mask = np.uint64(8 * len(seen) - 1)
    for at in range(len(tokens)):
        drawn = mixed(before[at], tokens[at])
        for shift in BLOOM_SHIFTS:
            bit = (drawn >> np.uint64(shift)) & mask
            seen[bit >> np.uint64(3)] |= np.uint8(1) << np.uint8(bit & np.uint64(7))


@checked
def all_new(before: Any, tokens: Any, seen: Any) -> Any:
    """`is_new` of many pairs."""
    found = np.zeros(len(tokens), np.uint8)
    for at in range(len(tokens)):
        found[at] = is_new(before[at], tokens[at], seen)
    return found
