"""The bets of the drift detector: which changes of the ranks it looks for, and how much it puts on each.

A numeric series is watched through its ranks among everything before, cut into bins. Under the null a bin's
probability is known exactly (`urn`), so a bet is a table: how much more probable than that each bin would be after
the change. Shifts and spreads are written in normal scores, which lose nothing against the mean on a normal series
and gain on every other shape (Chernoff and Savage 1958).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Change = Literal["level", "spread", "tail", "category"]

SHIFTS = (0.18, 0.4, 0.9, 1.8)
"""Standard deviations, either way."""
SPREADS = (1.3, 2.0, 0.8, 0.55)
"""Ratios of the standard deviations."""
TAIL_SHARES = {1: 0.01, 4: 0.015, 16: 0.03}
"""Share of the values that lies beyond each outer edge after the change, by the edge's rank."""
WEIGHT_OF_SHIFTS, WEIGHT_OF_SPREADS = 0.7, 0.18
TILTS = 2 * len(SHIFTS) + len(SPREADS)


@dataclass(frozen=True, slots=True)
class Bet:
    """`size`: shift in standard deviations (signed), ratio of spreads, or share of values in the tail (signed by side);
    for a category, the factor of its share."""

    change: Change
    size: float
    category: int = -1


@dataclass(frozen=True, slots=True)
class Shape:
    """How an urn cuts ranks into bins. Ranks count from 1, from either end for the tails."""

    warm_up: int
    """Values that set the inner edges."""
    inner: tuple[int, ...]
    """Inner edges: order statistics of the first values, symmetric."""
    tails: tuple[int, ...]
    """Outer edges: order statistics of everything so far, set anew each time the count doubles."""

    @property
    def edges(self) -> int:
        return len(self.inner) + 2 * len(self.tails)

    @property
    def kept(self) -> int:
        """Lowest and highest values that are kept, each."""
        return self.tails[-1]

    @property
    def words(self) -> int:
        return max(-(-self.warm_up // 2), self.edges + 2 * self.kept)

    def bets(self) -> tuple[Bet, ...]:
        """In the order of the columns of the table; the tails come last, lower side first."""
        shifts = [Bet("level", sign * size) for size in SHIFTS for sign in (-1, 1)]
        spreads = [Bet("spread", ratio) for ratio in SPREADS]
        tails = [Bet("tail", sign * TAIL_SHARES[rank]) for sign in (-1, 1) for rank in self.tails]
        return (*shifts, *spreads, *tails)


FINE = Shape(128, (3, 8, 15, 23, 31, 40, 48, 57, 65, 73, 82, 90, 99, 107, 115, 122, 127), (1, 4, 16))
"""For a series that is judged as a whole."""
COARSE = Shape(40, (3, 8, 13, 18, 23, 28, 33, 38), (1, 4))
"""For each stratum of a series that is judged given its input: a third of the memory, 3 % more delay."""


def design(shape: Shape, tolerance: float = 0.0) -> NDArray[np.void]:
    """A shape and its bets, shape (1,), for the compiled code, to which a record's sizes are constants. B bins, J bets.

    `table` (B, J): the tilt of each bin; for a tail bet, 1 where the bin lies in the tail and else 0. `weights` (J,):
    sum 1. `allowance` (J,): what each bet would win on average from a change that is tolerated: shifts up to
    `tolerance` standard deviations, and spreads up to this ratio - 1. `scores` (B,): normal scores. `gains` and `sums`
    (J,): scratch.
    """
    bets, tails = shape.bets(), len(shape.tails)
    table = _table(shape, bets)
    rest = 1.0 - WEIGHT_OF_SHIFTS - WEIGHT_OF_SPREADS
    groups = [(2 * len(SHIFTS), WEIGHT_OF_SHIFTS), (len(SPREADS), WEIGHT_OF_SPREADS), (2 * tails, rest)]
    values: dict[str, NDArray[np.float64] | NDArray[np.int64]] = {
        "table": table,
        "weights": np.concatenate([np.full(count, weight / count) for count, weight in groups]),
        "allowance": _allowance(shape, bets, table, tolerance),
        "scores": _scores(shape),
        "shares": np.array([abs(bet.size) for bet in bets[TILTS:]]),
        "gains": np.ones(len(bets)),
        "sums": np.ones(len(bets)),
        "inner": np.array(shape.inner, np.int64),
        "tails": np.array(shape.tails, np.int64),
        "warm_up": np.array(shape.warm_up, np.int64),
        "kept": np.array(shape.kept, np.int64),
    }
    made = np.zeros(1, np.dtype([(name, value.dtype, value.shape) for name, value in values.items()]))
    for name, value in values.items():
        made[name] = value
    return made


def _table(shape: Shape, bets: tuple[Bet, ...]) -> NDArray[np.float64]:
    scores, bins, tails = _scores(shape), np.arange(shape.edges + 1), len(shape.tails)
    columns = [_tilt(bet, scores) for bet in bets[:TILTS]]
    columns += [(bins <= level).astype(float) for level in range(tails)]
    columns += [(bins >= shape.edges - level).astype(float) for level in range(tails)]
    return np.ascontiguousarray(np.stack(columns, axis=1))


def _tilt(bet: Bet, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    if bet.change == "level":
        return np.asarray(np.exp(bet.size * scores - bet.size**2 / 2))
    return np.asarray(np.exp(scores**2 / 2 * (1 - 1 / bet.size**2)) / bet.size)


def _scores(shape: Shape) -> NDArray[np.float64]:
    """Normal score of each bin, at the middle of its ranks among the first values; the outer bins share the ends'."""
    edges = np.array([0, *shape.inner, shape.warm_up + 1]) / (shape.warm_up + 1)
    inner = np.array([NormalDist().inv_cdf(middle) for middle in (edges[:-1] + edges[1:]) / 2])
    outside = len(shape.tails)
    return np.concatenate([np.repeat(inner[0], outside), inner, np.repeat(inner[-1], outside)])


def _allowance(
    shape: Shape, bets: tuple[Bet, ...], table: NDArray[np.float64], tolerance: float
) -> NDArray[np.float64]:
    """The largest mean gain of each bet over all corners of what is tolerated, at the bins' first probabilities."""
    if tolerance <= 0.0:
        return np.ones(len(bets))
    edges = [0.0, *(rank / (shape.warm_up + 1) for rank in shape.inner), 1.0]
    before = np.diff(edges)
    inner = table[len(shape.tails) : len(shape.tails) + len(before), :TILTS]
    ratios = (1.0 / (1.0 + tolerance), 1.0, 1.0 + tolerance)
    corners = [_moved(edges, shift, ratio) for shift in (-tolerance, 0.0, tolerance) for ratio in ratios]
    gains = np.array([after @ inner / (before @ inner) for after in corners])
    tails = [_tail_allowance(abs(bet.size), tolerance) for bet in bets[TILTS:]]
    return np.concatenate([np.maximum(gains.max(axis=0), 1.0), tails])


def _moved(edges: list[float], shift: float, ratio: float) -> NDArray[np.float64]:
    """Bin probabilities after a normal series moved by `shift` and spread by `ratio`."""
    normal = NormalDist()
    inner = [normal.cdf((normal.inv_cdf(edge) - shift) / ratio) for edge in edges[1:-1]]
    return np.diff([0.0, *inner, 1.0])


def _tail_allowance(share: float, tolerance: float) -> float:
    """For a tail that held a tenth of the share: beyond it, what is tolerated counts at most so many times more."""
    normal, before = NormalDist(), share / 10
    after = normal.cdf((normal.inv_cdf(before) + tolerance) / (1.0 + tolerance))
    return max(1.0, after * share / before + (1.0 - after) * (1.0 - share) / (1.0 - before))
