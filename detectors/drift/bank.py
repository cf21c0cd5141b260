"""Many series watched at once, each with a bound on its false alarms that needs no known baseline.

Theorem used (Shin, Ramdas, Rinaldo, "E-detectors", arXiv 2203.03532: a threshold of A bounds the average run length
by A): if M is a sum over all starting points of e-processes, M - count has mean at most 0 at any stopping time, so the
first time at which M reaches A comes after A updates or more on average, and within n of them with probability at
most n / A.

Assumption, numeric series: while nothing changes, the values of a series (within each stratum) are exchangeable, for
instance independent draws of one distribution, of any shape. Then the ranks that the bets are on have a known law
(`urn`), however few values the baseline holds: no parameter is estimated. How many values of each stratum come, and
when, may change at will.
Assumption, categories: independent draws with any fixed probabilities (`categories`).

No theorem here covers a series that depends on its own past. Where the lag-1 autocorrelation of its ranks shows
(5 standard errors at 1,000, 2,000, 4,000… values), an unstratified series is judged by the residuals of a first-order
autoregression, fitted to everything before; that its innovations are independent is then assumed, and the bound is
empirical. So is that of a stratified series which shows such dependence. Alarms of both say `dependent`. Of a
million exchangeable series, six or so are taken for dependent ones at one of the first ten checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from checkengine.detectors.drift.bets import COARSE, FINE, Bet, design
from checkengine.detectors.drift.categories import MOST_CATEGORIES, category_bets, update_many_categories
from checkengine.detectors.drift.evidence import Evidence
from checkengine.detectors.drift.numeric import update_many
from checkengine.detectors.drift.records import series_of, urn_of
from checkengine.detectors.drift.wagers import fold

MOST_STRATA = 15
"""Keeps the state of a series within 4 KiB."""


@dataclass(frozen=True, slots=True)
class DriftAlarm:
    """A change that `series` has shown. Values count from 1 since the series (re)started."""

    index: int
    """Position in the batch of updates."""
    series: int
    bet: Bet
    """The change that won most."""
    began: int
    """Values before the change, as the winning bet's CUSUM tells it."""
    seen: int
    log_evidence: float
    """Nats; at least log of the threshold."""
    dependent: bool
    """The series depends on its own past: the bound on false alarms is empirical, not proven."""


class _Bank:
    """What numeric and categorical banks share. A bank is not thread-safe."""

    def __init__(
        self, size: int, bets: tuple[Bet, ...], weights: NDArray[np.float64], baseline: int, arl: float, seed: int
    ) -> None:
        if size < 1 or baseline < 1 or not arl > 1.0:
            raise ValueError("a bank needs at least one series, a baseline of at least 1 value and an arl above 1")
        self.bets, self.baseline, self.arl = bets, baseline, arl
        self._weights = weights
        self._series = np.zeros(size, series_of(len(bets)))
        self._series["product"] = 1.0
        self._series["seed"] = np.random.default_rng(seed).integers(0, 2**63, size, np.uint64)

    def __len__(self) -> int:
        return len(self._series)

    @property
    def seen(self) -> NDArray[np.uint32]:
        """Values of each series since it (re)started, shape (series,)."""
        return self._series["seen"].copy()

    @property
    def skipped(self) -> NDArray[np.uint32]:
        """Values that were no numbers."""
        return self._series["skipped"].copy()

    @property
    def log_evidence(self) -> NDArray[np.float64]:
        """Nats for a change at this moment, shape (series,); an alarm comes at log(arl). -inf before the first bet."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self._series["total"]), np.float64)

    def _numbers(self, series: ArrayLike, length: int) -> NDArray[np.int64]:
        numbers = np.ascontiguousarray(np.broadcast_to(np.asarray(series, np.int64), (length,)))
        if length and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise ValueError(f"series are numbered 0 to {len(self) - 1}")
        return numbers

    def _told(self, rows: NDArray[np.float64], numbers: NDArray[np.int64], dependent: NDArray[Any]) -> list[DriftAlarm]:
        return [
            DriftAlarm(
                int(index), int(numbers[int(index)]), self.bets[int(bet)], int(began), int(seen), float(log), bool(flag)
            )
            for (index, bet, began, seen, log), flag in zip(rows, dependent, strict=True)
        ]

    def _growth(self, series: int) -> NDArray[np.int64]:
        record = self._series[series]
        fold(record)
        growth = record["growth"].copy()
        record["growth"] = 0
        return np.asarray(growth)


class DriftBank(_Bank):
    """Numeric series. `arl`: updates of one series between false alarms, at least; so n series that each get a value
    a request give at most n / arl false alarms a request. State: `state_bytes` a series, whatever the traffic."""

    def __init__(
        self,
        size: int,
        *,
        strata: int = 1,
        baseline: int = 1000,
        arl: float = 2.5e7,
        tolerance: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`strata`: values are judged against earlier ones of their own stratum only (bands of an input).
        `baseline`: values before the first bet; it keeps growing afterwards.
        `tolerance`: shifts up to so many standard deviations, and spreads up to this ratio - 1, are no change (the
        bound then holds for normal-score shifts and spreads within it, and is approximate where ranks are coarse)."""
        if not 1 <= strata <= MOST_STRATA:
            raise ValueError(f"a bank takes 1 to {MOST_STRATA} strata")
        shape = FINE if strata == 1 else COARSE
        self._design = design(shape, tolerance)
        super().__init__(size, shape.bets(), self._design["weights"][0], baseline, arl, seed)
        self.strata = strata
        self._urns = np.zeros((size, strata), urn_of(shape))

    @property
    def state_bytes(self) -> int:
        return (self._series.nbytes + self._urns.nbytes) // len(self)

    def update(self, series: ArrayLike, values: ArrayLike, strata: ArrayLike = 0) -> list[DriftAlarm]:
        """Takes values in order. `series`, `strata`: integers, one or one a value; `values`: shape (n,), any numbers.

        After an alarm the series starts again with a new baseline. ValueError where a number is out of range.
        """
        taken = np.ascontiguousarray(np.atleast_1d(np.asarray(values, np.float64)))
        numbers = self._numbers(series, len(taken))
        bands = np.ascontiguousarray(np.broadcast_to(np.asarray(strata, np.int64), taken.shape))
        if len(taken) and not (bands.min() >= 0 and bands.max() < self.strata):
            raise ValueError(f"strata are numbered 0 to {self.strata - 1}")
        rows = np.empty((len(taken), 6))
        found = update_many(
            self._series, self._urns, numbers, taken, bands, self._design, self.baseline, self.arl, rows
        )
        return self._told(rows[:found, :5], numbers, rows[:found, 5])

    def collect(self, series: int) -> Evidence:
        """What the bets on a series have won since the last collection, to be summed over replicas (`evidence`)."""
        return Evidence(tuple(int(each) for each in self._growth(series)))


class CategoryBank(_Bank):
    """Series of categories, numbered from 0; the last of `categories` takes all others. `arl` as in `DriftBank`."""

    def __init__(
        self,
        size: int,
        categories: int = MOST_CATEGORIES,
        *,
        baseline: int = 1000,
        arl: float = 2.5e7,
        seed: int = 0,
    ) -> None:
        if not 2 <= categories <= MOST_CATEGORIES:
            raise ValueError(f"a bank takes 2 to {MOST_CATEGORIES} categories")
        bets = category_bets(categories)
        super().__init__(size, bets, np.full(len(bets), 1.0 / len(bets)), baseline, arl, seed)
        self._counts = np.zeros((size, categories), np.uint32)

    @property
    def state_bytes(self) -> int:
        return (self._series.nbytes + self._counts.nbytes) // len(self)

    def update(self, series: ArrayLike, categories: ArrayLike) -> list[DriftAlarm]:
        """Takes categories in order; a negative one is counted as skipped. Starts again after an alarm."""
        taken = np.ascontiguousarray(np.atleast_1d(np.asarray(categories, np.int64)))
        numbers = self._numbers(series, len(taken))
        rows = np.empty((len(taken), 6))
        found = update_many_categories(
            self._series, self._counts, numbers, taken, self._weights, self.baseline, self.arl, rows
        )
        return self._told(rows[:found, :5], numbers, np.zeros(found))

    def shares(self, series: int) -> NDArray[np.float64]:
        """Share of each category since the series (re)started, shape (categories,)."""
        counts = self._counts[series]
        return np.asarray(counts / max(1, int(counts.sum())))

    def collect(self, series: int) -> Evidence:
        """As in `DriftBank`; the price of the unknown probabilities is part of it."""
        seen = max(1, int(self._series["seen"][series]))
        return Evidence(tuple(int(each) for each in self._growth(series)), math.log(2.0 * math.sqrt(seen)))
