"""Whether a block that is applied again and again to its own output blows up.

With h the hidden state and d = |h(t+1) - h(t)|, a loop that is a contraction near its fixed point makes d shrink, and
one with spectral radius r > 1 makes it grow by r a loop in the end; a constant input injected at each loop falls out of
the difference. The running estimate of the radius is the growth of d a loop since its last low.

Growth alone does not prove divergence: a contraction that is not normal lets d grow first (Trefethen & Embree 2005,
"Spectra and Pseudospectra"). Such growth slows down, geometric growth does not. So it takes `growth`-fold growth since
the low, over at least `fewest_loops` loops, the last third of which grows at `steadiness` of the first third's rate.

Cannot be told apart by norms: growth of a rotation in badly skewed coordinates before its norm turns.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LoopNorms:
    """Of one forward pass; shape (loops, rows)."""

    hidden: Floats
    """Euclidean norm of the state after each loop."""
    change: Floats
    """…and of its difference to the state before, which is NaN for a first loop whose input is not known."""
    epsilon: float = 2.0**-23
    """Of the state's dtype: changes of some units in the last place are rounding."""

    def rows(self, chosen: NDArray[np.int64]) -> LoopNorms:
        return LoopNorms(self.hidden[:, chosen], self.change[:, chosen], self.epsilon)


@dataclass(frozen=True, slots=True)
class RecurrenceLimits:
    growth: float = 4.5
    fewest_loops: int = 8
    steadiness: float = 0.75
    rough_growth: float = 20.0
    """Growth that a rotation, whose rate swings, may show it by…"""
    rough_steadiness: float = 0.6
    window: int = 48
    """Loops that growth is looked for in: slower radii than growth^(1/window) are not found."""


@dataclass(frozen=True, slots=True)
class Divergence:
    row: int
    loop: int
    """Index of the loop that showed it."""
    loops: int
    """Of growth up to there; 0 where the state is not finite."""
    radius: float
    """Growth a loop over these; NaN where the state is not finite."""
    growth: float


class RecurrenceDetector:
    """Reads loop after loop of one forward pass, all rows at once. A row is told once."""

    def __init__(self, rows: int, limits: RecurrenceLimits | None = None, epsilon: float = 2.0**-23) -> None:
        self._limits = limits or RecurrenceLimits()
        self._goal = math.log(self._limits.growth)
        self._rough_goal = math.log(self._limits.rough_growth)
        # Of the state: a converged loop still moves by some rounding.
        self._noise = 64 * epsilon
        self._ring = np.full((self._limits.window, rows), np.inf)
        self._told = np.zeros(rows, np.bool_)
        self._loop = -1

    def push(self, hidden: Floats, change: Floats) -> list[Divergence]:
        """Norms after one more loop, shape (rows,)."""
        self._loop += 1
        window = self._limits.window
        infinite = ~np.isfinite(hidden) & ~self._told
        with np.errstate(invalid="ignore", divide="ignore"):
            now = np.log(np.maximum(change.astype(np.float64), hidden * self._noise))
        # An unknown change is no low to grow from.
        now = np.where(np.isfinite(now), now, np.inf)
        self._ring[self._loop % window] = now
        found = [self._tell(row, 0, math.nan, math.inf) for row in np.flatnonzero(infinite).tolist()]
        known = np.isfinite(now) & ~self._told
        grown = known & (np.where(known, now, -np.inf) - self._ring.min(0) >= self._goal)
        for row in np.flatnonzero(grown).tolist():
            if divergence := self._judge(row):
                found.append(divergence)
        return found

    def _judge(self, row: int) -> Divergence | None:
        window = self._limits.window
        count = min(self._loop + 1, window)
        order = np.arange(self._loop - count + 1, self._loop + 1) % window
        trace = self._ring[order, row]
        limits = self._limits
        last = count - 1
        shortest = int(np.flatnonzero(trace <= trace[-1] - self._goal)[-1])
        lowest = int(trace.argmin())
        for low, goal, steadiness in (
            (shortest, self._goal, limits.steadiness),
            (lowest, self._rough_goal, limits.rough_steadiness),
        ):
            growth, loops = float(trace[last] - trace[low]), last - low
            if growth >= goal and loops >= limits.fewest_loops and steady(trace[low:], steadiness):
                return self._tell(row, loops, math.exp(growth / loops), math.exp(growth))
        return None

    def _tell(self, row: int, loops: int, radius: float, growth: float) -> Divergence:
        self._told[row] = True
        return Divergence(row, self._loop, loops, radius, growth)


def diverging(norms: LoopNorms, limits: RecurrenceLimits | None = None) -> list[Divergence]:
    """Of a whole forward pass."""
    detector = RecurrenceDetector(norms.hidden.shape[1], limits, norms.epsilon)
    return [
        found
        for hidden, change in zip(norms.hidden, norms.change, strict=True)
        for found in detector.push(hidden, change)
    ]


def steady(trace: NDArray[np.float64], least: float) -> bool:
    """The thirds of a trace rise at rates of which the lowest is at least this share of the highest."""
    last = len(trace) - 1
    ends = (0, round(last / 3), round(2 * last / 3), last)
    rates = [(trace[end] - trace[first]) / (end - first) for first, end in itertools.pairwise(ends)]
    return bool(min(rates) >= least * max(rates))
