"""Bounds on how often something happens, from how often it was seen."""

from __future__ import annotations

import math
from collections.abc import Callable

CONFIDENCE = 0.95


def clopper_pearson(seen: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact bounds on a rate (Clopper and Pearson, Biometrika 26, 1934): two-sided, one-sided where `seen` is none or
    all of `trials`."""
    if trials < 1 or not 0 <= seen <= trials:
        raise ValueError(f"{seen} of {trials} is no count")
    tail = 1 - confidence if seen in (0, trials) else (1 - confidence) / 2
    low = 0.0 if seen == 0 else solve(lambda rate: at_least(seen, trials, rate), tail)
    high = 1.0 if seen == trials else 1 - solve(lambda rate: at_least(trials - seen, trials, rate), tail)
    return low, high


def at_least(seen: int, trials: int, rate: float) -> float:
    """Probability of `seen` or more in so many trials."""
    return math.fsum(math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(seen, trials + 1))


def solve(rising: Callable[[float], float], wanted: float) -> float:
    """Where a rising function of a rate takes a value, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2
