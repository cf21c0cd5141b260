"""The urn that the ranks of an unchanged series are drawn from.

Take everything a series has shown as order statistics; they leave (count + 1) gaps. If the values are exchangeable,
the next one falls into each gap with the same probability 1 / (count + 1), whatever came before and whatever the
distribution (equal values are told apart by a random number). A bin whose edges are earlier values is a union of
gaps, so its probability is exactly gaps / (count + 1): nothing about the baseline is estimated. It holds for edges
that are chosen at any time from what was seen by then, so the outer ones may follow the extremes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.drift.compiled import compiled, scrambled


@compiled
def ordered_bits(value: Any) -> Any:
    """float32 bits as an unsigned integer that orders like the float; -0 and 0 are one."""
    bits = np.float32(value + 0.0).view(np.uint32)
    return np.uint32(~bits) if bits >> np.uint32(31) else np.uint32(bits | np.uint32(0x80000000))


@compiled
def key_of(bits: Any, seed: Any, index: Any) -> Any:
    """The value above, a random number below: equal values are in random order."""
    return (np.uint64(bits) << np.uint64(32)) | (scrambled(seed, index) >> np.uint64(32))


@compiled
def warm(urn: Any, bits: Any, seed: Any, design: Any) -> Any:
    """Keeps a value of the warm-up; with the last one it sets the bins and returns True."""
    seen = urn.seen
    word, half = seen >> 1, np.uint64(32 * (seen & 1))
    before = np.uint64(0) if seen & 1 == 0 else urn.words[word]
    urn.words[word] = before | (np.uint64(bits) << half)
    urn.seen = seen + 1
    if urn.seen < design.warm_up:
        return False
    keys = np.empty(design.warm_up, np.uint64)
    for index in range(design.warm_up):
        half = np.uint64(32 * (index & 1))
        keys[index] = key_of((urn.words[index >> 1] >> half) & np.uint64(0xFFFFFFFF), seed, index)
    keys.sort()
    _set_bins(urn, keys, design)
    return True


@compiled
def _set_bins(urn: Any, keys: Any, design: Any) -> None:
    tails, inner, kept = design.tails.shape[0], design.inner.shape[0], design.kept
    below, edges = np.int64(0), inner + 2 * tails
    for level in range(inner):
        rank = design.inner[level]
        urn.words[tails + level] = keys[rank - 1]
        urn.gaps[tails + level] = rank - below
        below = rank
    urn.gaps[tails + inner] = keys.shape[0] + 1 - below
    for place in range(kept):
        urn.words[edges + place] = keys[place]
        urn.words[edges + kept + place] = keys[keys.shape[0] - kept + place]
    set_tails(urn, design)


@compiled
def set_tails(urn: Any, design: Any) -> None:
    """Outer edges at the extremes of everything so far, as far as these lie beyond the inner edges."""
    words, gaps, kept, tails = urn.words, urn.gaps, design.kept, design.tails.shape[0]
    edges = design.inner.shape[0] + 2 * tails
    below, above = np.int64(0), np.int64(0)
    for level in range(tails + 1):
        below += gaps[level]
        above += gaps[edges - level]
    used_below, used_above = np.int64(0), np.int64(0)
    for level in range(tails):
        low = max(min(design.tails[level], below - 1), 1)
        high = max(min(design.tails[level], above - 1), 1)
        words[level] = words[edges + low - 1]
        words[edges - 1 - level] = words[edges + 2 * kept - high]
        gaps[level], gaps[edges - level] = low - used_below, high - used_above
        used_below, used_above = low, high
    gaps[tails], gaps[edges - tails] = below - used_below, above - used_above


@compiled
def keep_extremes(words: Any, key: Any, edges: Any, kept: Any) -> None:
    """Sorted lists of the lowest and the highest keys, the innermost of each at its inner end."""
    lowest, highest = edges, edges + kept
    if key < words[highest - 1]:
        place = highest - 1
        while place > lowest and words[place - 1] > key:
            words[place] = words[place - 1]
            place -= 1
        words[place] = key
    if key > words[highest]:
        place = highest
        while place < highest + kept - 1 and words[place + 1] < key:
            words[place] = words[place + 1]
            place += 1
        words[place] = key


@compiled
def bin_of(words: Any, edges: Any, key: Any) -> Any:
    low, high = 0, edges
    while low < high:
        middle = (low + high) >> 1
        if words[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def sum_up(gaps: Any, table: Any, sums: Any) -> None:
    """Each bet's tilt, summed over all gaps."""
    for bet in range(table.shape[1]):
        sums[bet] = 0.0
    for each in range(table.shape[0]):
        tilts, count = table[each], np.float64(gaps[each])
        for bet in range(table.shape[1]):
            sums[bet] += count * tilts[bet]
