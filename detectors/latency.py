"""Late tokens against a limit, in bursts: one that is late is a hiccup, many in a short while break the objective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BurstLimits:
    seconds: float
    """A wait above this is late."""
    burst: float = 8.0
    """Late ones in a row that are told; with others between them, more."""
    forgiven: float = 0.25
    """Late ones that one in time makes good: a share of late ones below forgiven / (1 + forgiven) is never told."""


class LateBursts:
    """A leaky bucket a slot: +1 for a late wait, -`forgiven` for one in time, never below 0."""

    def __init__(self, limits: BurstLimits) -> None:
        self.limits = limits
        self._level = np.zeros(64)

    def clear(self, slot: int) -> None:
        if slot >= len(self._level):
            self._level = np.concatenate((self._level, np.zeros(max(slot + 1, len(self._level)))))
        self._level[slot] = 0.0

    def add(self, slots: NDArray[np.int64], waits: NDArray[np.float64]) -> NDArray[np.int64]:
        """One wait (seconds; NaN is none) each of different slots. Returns indices into `slots` of full buckets, which
        are emptied: a burst that goes on is told again after as many late ones."""
        late = waits > self.limits.seconds
        steps = np.where(late, 1.0, np.where(np.isnan(waits), 0.0, -self.limits.forgiven))
        level = np.maximum(self._level[slots] + steps, 0.0)
        full = np.flatnonzero(late & (level >= self.limits.burst))
        level[full] = 0.0
        self._level[slots] = level
        return full


class LateBurst:
    """One slot's bucket by itself: for streams that come one chunk at a time."""

    def __init__(self, limits: BurstLimits) -> None:
        self.limits = limits
        self._level = 0.0

    def add(self, wait: float) -> bool:
        """True where the bucket is full now; it is emptied."""
        if wait <= self.limits.seconds:
            self._level = max(0.0, self._level - self.limits.forgiven)
            return False
        self._level += 1.0
        if self._level < self.limits.burst:
            return False
        self._level = 0.0
        return True
