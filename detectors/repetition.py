"""Repetition in a stream of tokens: exact cycles at the tail, and the offline share of repeated n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cycle:
    """The last `span_tokens` tokens repeat with this period; `start` is the first one's index."""

    period: int
    copies: float
    span_tokens: int
    start: int


@dataclass(frozen=True, slots=True)
class CycleLimits:
    """A cycle counts from `minimum_copies` and `minimum_span` tokens on; a short period needs a longer span."""

    minimum_copies: int = 3
    minimum_span: int = 48
    short_period: int = 4
    short_span: int = 96
    longest_period: int = 512


def seq_rep_n(tokens: Sequence[int], n: int = 4) -> float:
    """Share of n-grams that occurred before, 0 … 1 (Welleck et al. 2019, arXiv 1908.04319)."""
    total = len(tokens) - n + 1
    if total <= 0:
        return 0.0
    return 1.0 - len({tuple(tokens[i : i + n]) for i in range(total)}) / total


_SEED_TOKENS = 4


class CycleDetector:
    """Exact cycles at the tail of one stream, any period from 1 to `longest_period`, in bounded memory.

    The last four tokens are looked up among earlier ones; the distance to their previous occurrence is
    the only period that can just have begun. From then on one comparison a token follows the cycle.
    """

    __slots__ = ("_count", "_limits", "_period", "_ring", "_seen", "_size", "_start")

    def __init__(self, limits: CycleLimits | None = None) -> None:
        self._limits = limits or CycleLimits()
        self._size = self._limits.longest_period + _SEED_TOKENS
        self._ring = [-1] * self._size
        self._seen: dict[tuple[int, ...], int] = {}
        self._count = 0
        self._period = 0
        self._start = 0

    def push(self, token: int) -> Cycle | None:
        """The cycle that the stream is in after this token, once it is longer than the limits allow."""
        position, size, ring = self._count, self._size, self._ring
        self._count = position + 1
        ring[position % size] = token
        period = self._period
        if period and ring[(position - period) % size] != token:
            self._period = period = 0
        last = self._remember(position)
        if not period and last is not None:
            self._period = period = position - last
            self._start = max(0, position - _SEED_TOKENS + 1 - period)
        return self._reading() if period else None

    def _remember(self, position: int) -> int | None:
        """Where the last four tokens were seen before, if within the longest period."""
        if position + 1 < _SEED_TOKENS:
            return None
        ring, size = self._ring, self._size
        gram = tuple([ring[(position - k) % size] for k in range(_SEED_TOKENS)])
        last = self._seen.get(gram)
        self._seen[gram] = position
        if len(self._seen) > 4 * size:
            oldest = position - self._limits.longest_period
            self._seen = {gram: seen for gram, seen in self._seen.items() if seen >= oldest}
        if last is None or position - last > self._limits.longest_period:
            return None
        return last

    def _reading(self) -> Cycle | None:
        limits, period = self._limits, self._period
        span = self._count - self._start
        floor = limits.short_span if period <= limits.short_period else limits.minimum_span
        if span < floor or span < limits.minimum_copies * period:
            return None
        return Cycle(period, span / period, span, self._start)
