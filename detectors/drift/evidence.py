"""Evidence of several replicas for one change, summed: what moves a fleet a little is seen sooner than on any replica.

Every replica bets on its own traffic against its own past. What its bets have won since the last collection is a
vector of whole numbers; the sum over replicas is what the fleet won, the same in any order and grouping. Under the
null the replicas' values are independent of each other given the past, so the product is again an e-value and
`FleetDetector` is an e-detector whose clock is the collection: `arl` counts collections.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from checkengine.detectors.drift.wagers import NAT


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one series over one interval, from one replica or from several."""

    growth: tuple[int, ...]
    """Log of what each bet won, in units of 2^-32 nats, rounded down."""
    price: float = 0.0
    """Nats that an unknown baseline costs (categories)."""

    def __add__(self, other: Evidence) -> Evidence:
        if len(self.growth) != len(other.growth):
            raise ValueError(f"evidence of {len(self.growth)} bets cannot be added to evidence of {len(other.growth)}")
        growth = tuple(mine + theirs for mine, theirs in zip(self.growth, other.growth, strict=True))
        return Evidence(growth, self.price + other.price)


class FleetDetector:
    """Shiryaev-Roberts over collections. `weights`: of the bets, sum 1. It starts again after an alarm."""

    def __init__(self, weights: Sequence[float], arl: float) -> None:
        self._weights, self.arl = tuple(weights), arl
        self._sums = [0.0] * len(self._weights)

    def take(self, evidence: Evidence) -> float | None:
        """One collection, summed over the replicas; the log of the evidence where it reaches `arl`, else None."""
        if len(evidence.growth) != len(self._sums):
            raise ValueError(f"the detector has {len(self._sums)} bets, the evidence {len(evidence.growth)}")
        gains = [math.exp(min(700.0, grown / NAT)) for grown in evidence.growth]
        self._sums = [min((sum_ + 1.0) * gain, 1e300) for sum_, gain in zip(self._sums, gains, strict=True)]
        total = sum(weight * sum_ for weight, sum_ in zip(self._weights, self._sums, strict=True))
        log = math.log(total) - evidence.price if total > 0.0 else -math.inf
        if log < math.log(self.arl):
            return None
        self._sums = [0.0] * len(self._sums)
        return log
