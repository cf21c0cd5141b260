"""One update of a categorical series, compiled: each category against all others, as a coin whose bias is unknown.

The null is composite: any bias. A bet multiplies by its own probability of what came, over the predictive probability
(count + 1/2) / (seen + 1) of Krichevsky and Trofimov (1981). The product of these predictions is at least the largest
likelihood of any bias over 2·sqrt(seen), so the sums over 2·sqrt(seen) are e-processes whatever the bias (universal
inference: Wasserman, Ramdas, Balakrishnan 2020; for coins: Ramdas, Ruf, Larsson, Koolen 2022).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.drift.bets import Bet
from checkengine.detectors.drift.compiled import compiled
from checkengine.detectors.drift.wagers import forget_bets, settle, tell

MOST_CATEGORIES = 12
"""The last one takes every other category."""
FACTORS = (1.5, 3.0, 1 / 1.5, 1 / 3.0)
"""By which the odds of a category change."""
NEW_SHARE = 0.02
"""Share that a category takes which was rarer before."""
WAYS = len(FACTORS) + 1
_FACTORS = np.array(FACTORS)


def category_bets(categories: int) -> tuple[Bet, ...]:
    """In the order of the columns; a coin needs one side only."""
    sides = range(1, 2) if categories == 2 else range(categories)
    factors = (*FACTORS, NEW_SHARE)
    return tuple(Bet("category", factor, side) for side in sides for factor in factors)


@compiled
def update_many_categories(
    all_series: Any,
    all_counts: Any,
    numbers: Any,
    categories: Any,
    weights: Any,
    baseline: Any,
    threshold: Any,
    alarms: Any,
) -> Any:
    """As `numeric.update_many`. `all_counts`: (series, categories) uint32; a negative category is skipped."""
    found = 0
    for index in range(numbers.shape[0]):
        number = numbers[index]
        series, counts = all_series[number], all_counts[number]
        _update(series, counts, categories[index], weights, baseline)
        if series.total >= threshold:
            tell(series, index, weights, alarms[found])
            found += 1
            forget_bets(series)
            counts[:] = 0
            series.seen = 0
    return found


@compiled
def _update(series: Any, counts: Any, category: Any, weights: Any, baseline: Any) -> None:
    if category < 0:
        series.skipped += 1
        return
    category = min(np.int64(category), counts.shape[0] - 1)
    series.seen += 1
    if series.seen > baseline:
        total = settle(series, _gains(series, counts, category, weights.shape[0]), weights)
        series.total = total / (2.0 * np.sqrt(np.float64(series.seen)))
    counts[category] += 1


@compiled
def _gains(series: Any, counts: Any, category: Any, bets: Any) -> Any:
    gains = np.empty(bets)
    ways = _FACTORS.shape[0] + 1
    first = 1 if counts.shape[0] == 2 else 0
    for side in range(bets // ways):
        chance = (counts[first + side] + 0.5) / series.seen
        hit = category == first + side
        for way in range(ways - 1):
            tilt = _FACTORS[way]
            gains[side * ways + way] = (tilt if hit else 1.0) / (1.0 + (tilt - 1.0) * chance)
        share = NEW_SHARE / chance if hit else (1.0 - NEW_SHARE) / (1.0 - chance)
        gains[side * ways + ways - 1] = share if chance < NEW_SHARE else 1.0
    return gains
