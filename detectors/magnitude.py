"""Sizes that a healthy model does not reach: a limit far out in the tail, learnt from the rows seen so far.

The limit of a reading is `u + a b ln(0.02 / p)`, never below `1.5 u`: `u` is the 98 % quantile of the last rows and
`b = (99 % quantile - u) / ln 2` the mean excess over it where the tail is exponential (peaks over threshold; Pickands
1975, Balkema and de Haan 1974). Theorem used: if P(X > u + x | X > u) <= exp(-x / b), a row passes the limit with
probability at most p. Assumptions: such a tail, that is one no heavier than exponential (the logits measured have
generalised-Pareto shapes of -0.3 to 0, lighter), and rows to come that are distributed like the last ones. `u` and `b`
are estimated: the allowance `a = 1 + 2 / (ln 2 sqrt(0.02 n))` is two standard errors of b from n independent rows
(1.64 at 1,024, 1.23 at 8,192; rows of one sequence are not independent). Both are medians in kind, so that up to 1 %
of faulty rows in the sample move the limit little and never without bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TAIL = 0.98
_MEDIAN_OF_TAIL = 0.99
_ERRORS = 2.0
_RATIO = 1.5
_RENEWAL = 512
"""Rows after which the next reading's limit is estimated again, in turn: no step pays for all of them."""
_FIRST_ROWS = 64
_SCALE_ROWS = 4096
_ROWS_FOR_SCALE = 8
"""Of each step; reading them all would cost more than what it tells."""
_LARGEST = np.float32(8)


@dataclass(frozen=True, slots=True)
class TailSettings:
    false_alarm: float = 2e-7
    """Chance that a healthy row passes a limit, under the module's assumptions."""
    minimum_rows: int = 1024
    """Nothing is judged before so many rows have been seen."""
    kept_rows: int = 8192
    """The limits follow the last so many rows."""


class TailLimits:
    """Upper limits of several readings side by side. State: `readings x kept_rows` floats."""

    def __init__(self, readings: int, settings: TailSettings) -> None:
        self._settings = settings
        self._rows = np.empty((readings, settings.kept_rows), np.float32)
        self._next = self._known = 0
        self._unread = self._turn = 0
        self.limits: Floats = np.full(readings, np.inf)
        """Of each reading; +inf until there is enough to go by."""

    def learn(self, values: NDArray[np.floating]) -> None:
        """Shape (readings, rows). NaN where a row lacks the reading; what passes a limit counts as the limit."""
        capacity = self._rows.shape[1]
        kept = np.minimum(values, self.limits[:, None])[:, -capacity:]
        count = kept.shape[1]
        room = min(count, capacity - self._next)
        self._rows[:, self._next : self._next + room] = kept[:, :room]
        self._rows[:, : count - room] = kept[:, room:]
        self._next = (self._next + count) % capacity
        self._known = min(self._known + count, capacity)
        self._unread += count
        if self._known >= self._settings.minimum_rows:
            if np.isinf(self.limits).all():
                for reading in range(len(self.limits)):
                    self._renew(reading)
            elif self._unread >= _RENEWAL:
                self._turn = (self._turn + 1) % len(self.limits)
                self._renew(self._turn)

    def _renew(self, reading: int) -> None:
        self._unread = 0
        rows = self._rows[reading, : self._known]
        finite = rows[np.isfinite(rows)]
        if len(finite) >= self._settings.minimum_rows // 2:
            self.limits[reading] = tail_limit(finite, self._settings.false_alarm)


def tail_limit(values: NDArray[np.floating], false_alarm: float) -> float:
    """The limit of the module's heading for readings that are not negative, shape (rows,)."""
    ordered = np.sort(values)  # a tenth of what `np.quantile` takes
    beyond, middle = _quantile(ordered, _TAIL), _quantile(ordered, _MEDIAN_OF_TAIL)
    excess = (middle - beyond) / math.log(2)
    allowance = 1 + _ERRORS / (math.log(2) * math.sqrt((1 - _TAIL) * len(values)))
    # Readings that hardly vary (one prompt over and over) leave no tail to measure: the ratio and 1 are the least.
    return float(max(1.0, _RATIO * beyond, beyond + allowance * excess * math.log((1 - _TAIL) / false_alarm)))


def _quantile(ordered: NDArray[np.floating], share: float) -> float:
    """Linear between the two nearest values."""
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below]) + (at - below) * (float(ordered[above]) - float(ordered[below]))


class HiddenScale:
    """How large each element of a hidden state usually is, and by how much a row's largest passes that.

    A flipped exponent in the residual stream stays where it is until the final norm, which divides the whole row by
    it: the logits then look ordinary, and only the element itself tells. State: two numbers an element.
    """

    def __init__(self) -> None:
        self._first: list[Floats] = []
        self._square: Floats | None = None
        self._inverse: NDArray[np.float32] | None = None
        """One over the usual size, so that a batch is read in two passes of float32."""
        self._rows = 0

    def read(self, hidden: NDArray[np.floating]) -> Floats | None:
        """Shape (rows, elements) to (rows,): largest |element| over its usual size (root mean square).

        None for the first rows, and where the number of elements has changed; +inf or NaN where the row holds such.
        """
        if self._square is None or self._inverse is None or len(self._inverse) != hidden.shape[1]:
            self._begin(hidden)
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            sizes = np.abs(hidden) * self._inverse
            found: Floats = sizes.max(1).astype(np.float64)
            # A faulty element counts as a large one, so that it moves the scale by a bounded step.
            some = np.square(np.minimum(sizes[:: -(-len(sizes) // _ROWS_FOR_SCALE)], _LARGEST), dtype=np.float64)
        self._rows = min(self._rows + len(some), _SCALE_ROWS)
        self._square *= 1 + len(some) / self._rows * (np.nan_to_num(some, nan=1.0).mean(0) - 1)
        self._inverse = (1 / np.sqrt(self._square)).astype(np.float32)
        return found

    def _begin(self, hidden: NDArray[np.floating]) -> None:
        if self._first and self._first[0].shape[1] != hidden.shape[1]:
            self._first = []
        self._first.append(np.abs(hidden, dtype=np.float64))
        seen = np.concatenate(self._first)
        if len(seen) >= _FIRST_ROWS:
            # From a median to a root mean square, as if it were normal; the rows to come correct it.
            self._square = np.maximum(np.nanmedian(seen, axis=0) * 1.4826, 1e-6) ** 2
            self._inverse = (1 / np.sqrt(self._square)).astype(np.float32)
            self._rows, self._first = len(seen), []
