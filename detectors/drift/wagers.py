"""What the bets win, value by value: Shiryaev-Roberts sums for the alarm, CUSUMs for where a change began."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.drift.compiled import compiled

NAT = 4294967296.0
"""Units of `growth` in a nat."""


@compiled
def settle(series: Any, gains: Any, weights: Any) -> Any:
    """Multiplies each bet's sums by what it won; returns the weighted Shiryaev-Roberts sum."""
    roberts, page, product, first = series.roberts, series.page, series.product, series.first
    total, now = 0.0, np.uint32(series.seen - 1)
    for bet in range(gains.shape[0]):
        roberts[bet] = (roberts[bet] + 1.0) * gains[bet]
        total += weights[bet] * roberts[bet]
    for bet in range(gains.shape[0]):
        product[bet] *= gains[bet]
    for bet in range(gains.shape[0]):
        fresh = page[bet] < 1.0
        page[bet] = gains[bet] if fresh else page[bet] * gains[bet]
        first[bet] = now if fresh else first[bet]
    series.watched += 1
    if series.watched & 15 == 0:
        fold(series)
    return total


@compiled
def fold(series: Any) -> None:
    """Moves the products into whole numbers, rounded down: sums of these are the same in any order."""
    for bet in range(series.product.shape[0]):
        series.growth[bet] += np.int64(np.floor(np.log(series.product[bet]) * NAT))
        series.product[bet] = 1.0


@compiled
def forget_bets(series: Any) -> None:
    for bet in range(series.roberts.shape[0]):
        series.roberts[bet] = series.page[bet] = 0.0
    series.total = 0.0


@compiled
def best_bet(series: Any, weights: Any) -> Any:
    best = 0
    for bet in range(weights.shape[0]):
        if weights[bet] * series.roberts[bet] > weights[best] * series.roberts[best]:
            best = bet
    return best


@compiled
def tell(series: Any, index: Any, weights: Any, row: Any) -> None:
    """An alarm as a row: index of the update, bet, values before the change, values seen, log of the sum, dependent."""
    best = best_bet(series, weights)
    row[0], row[1], row[2], row[3] = index, best, series.first[best], series.seen
    row[4], row[5] = np.log(series.total), series.dependent
    series.alarms += 1
