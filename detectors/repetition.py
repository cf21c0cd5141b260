"""Repetition in a stream of tokens: exact cycles at the tail, and the offline share of repeated n-grams."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

_SEED_SHIFT = 4
"""A token's number is shifted out of the 64-bit rolling hash after 16 tokens: that is the seed's length."""
_SPREAD = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1
_LEAST_AGREEMENT = 8
"""Tokens that must agree before a period is taken up; the index may answer wrongly, the comparison never."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """The last `span_tokens` tokens repeat with this period; `start` is the index of the first of them."""

    period: int
    copies: float
    span_tokens: int
    start: int


@dataclass(frozen=True, slots=True)
class CycleLimits:
    """From when on a cycle counts. A short period needs a longer span, unless all its tokens are words:
    dividers, ellipses, zero-filled numbers, blank runs and table rules are such cycles and end by themselves."""

    minimum_copies: int = 3
    minimum_span: int = 48
    short_period: int = 4
    short_span: int = 128
    longest_period: int = 512


class CycleDetector:
    """Exact cycles at the tail of one stream, periods 1 … `longest_period`, in about 25 KB at the default limits.

    While the stream is in no cycle, its last 16 tokens are looked up among earlier ones by a rolling
    hash; the distance to where they stood last is the one period that can have begun, and how far back
    it holds is compared once. From then on one comparison a token follows the cycle, so that the cost
    does not grow with the period. Cycles are found from 16 tokens after the second copy began.
    """

    __slots__ = (
        "_hash",
        "_limits",
        "_mask",
        "_period",
        "_position",
        "_ring",
        "_since",
        "_slot_shift",
        "_slots",
        "_words",
    )

    def __init__(self, limits: CycleLimits | None = None, words: Sequence[bool] | None = None) -> None:
        """`words[token]` tells whether a token is a word, as `Vocabulary.words`; without it none is."""
        self._limits = limits or CycleLimits()
        if self._limits.longest_period < 1 or self._limits.minimum_copies < 2:
            raise ValueError("a cycle needs longest_period >= 1 and minimum_copies >= 2")
        size = 1 << (2 * self._limits.longest_period + 16).bit_length()
        self._mask = size - 1
        self._ring = array("i", bytes(4 * size))
        slots = 8 * self._limits.longest_period
        self._slot_shift = 64 - slots.bit_length()
        self._slots = array("i", [-1]) * (1 << slots.bit_length())
        self._words = words
        self._position = -1
        self._hash = 0
        self._period = 0
        self._since = 0

    def push(self, token: int) -> Cycle | None:
        """The cycle that the stream is in after this token, once it is longer than the limits allow."""
        self._position = position = self._position + 1
        ring, mask = self._ring, self._mask
        ring[position & mask] = token
        self._hash = seed = ((self._hash << _SEED_SHIFT) + token * _SPREAD) & _MASK64
        slot = seed >> self._slot_shift
        last = self._slots[slot]
        self._slots[slot] = position
        period = self._period
        if period:
            if ring[(position - period) & mask] == token:
                return self._reading(position, period)
            self._period = 0
        if last >= 0 and ring[last & mask] == token and position - last <= self._limits.longest_period:
            return self._take_up(position, position - last)
        return None

    def _take_up(self, position: int, period: int) -> Cycle | None:
        """The stream may have had this period for longer than the tokens that show it, or not at all."""
        ring, mask = self._ring, self._mask
        at, oldest = position, max(period, position - mask + period)
        while at >= oldest and ring[at & mask] == ring[(at - period) & mask]:
            at -= 1
        if position - at < _LEAST_AGREEMENT:
            return None
        self._period, self._since = period, at + 1 - period
        return self._reading(position, period)

    def _reading(self, position: int, period: int) -> Cycle | None:
        limits, span = self._limits, position + 1 - self._since
        if span < limits.minimum_span or span < limits.minimum_copies * period:
            return None
        if period <= limits.short_period and span < limits.short_span and not self._is_of_words(position, period):
            return None
        return Cycle(period, span / period, span, self._since)

    def _is_of_words(self, position: int, period: int) -> bool:
        words, ring, mask = self._words, self._ring, self._mask
        if words is None:
            return False
        tokens = [ring[(position - k) & mask] for k in range(period)]
        return all(0 <= token < len(words) and words[token] for token in tokens)


def seq_rep_n(tokens: Sequence[int], n: int = 4) -> float:
    """Share of n-grams that occurred before, 0 … 1 (Welleck et al. 2019, arXiv 1908.04319)."""
    total = len(tokens) - n + 1
    if total <= 0:
        return 0.0
    return 1.0 - len({tuple(tokens[i : i + n]) for i in range(total)}) / total
