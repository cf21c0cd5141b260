"""One replica of forty that salads now and then, in simulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.benchmarks.figure import figure
from checkengine.detectors.drift.siblings import Counts, SiblingTest
from checkengine.guards.settings import SiblingSettings

REPLICAS, RATE = 40, 5.0
"""Replicas, and requests a second of each."""
HEALTHY, SALAD = 1e-6, 1 / 20_000
"""Findings a request: a guard's false ones, and the bad replica's own."""
MINUTES_10, HOURS_6 = 600.0, 6 * 3600.0
NAMES = [f"r{number}" for number in range(REPLICAS)]
BAD = 7


def figures(quick: bool) -> list[dict[str, Any]]:
    random = np.random.default_rng(10)
    delays = np.array([_delay(random) for _ in range(25 if quick else 150)])
    years = 2 if quick else 15
    accused = sum(_accused_in_a_year(random, rate) for rate in (HEALTHY, 10 * HEALTHY, 1e-4) for _ in range(years))
    return [
        figure("a replica of 40 that salads 1 in 20,000 is named, median", float(np.median(delays)), "hours", 12.0),
        figure("the same, share named within half a day", float((delays <= 12).mean()), "of runs", 0.9, at_least=True),
        figure(f"false accusations a fleet-year, {3 * years} years", accused / (3 * years), "accusations", 1.0),
    ]


def _test() -> SiblingTest:
    """As the guard makes it: the year's accusations are shared by its dimensions and kinds."""
    settings = SiblingSettings()
    return SiblingTest(settings.members, settings.accusations_a_year / (len(settings.dimensions) * settings.kinds))


def _delay(random: np.random.Generator) -> float:
    """Hours from the onset, which comes at any time on the second day, to the accusation; infinite after three days."""
    test, onset = _test(), 86_400 + random.uniform(0, 86_400)
    for t in np.arange(0.0, onset + 3 * 86_400, MINUTES_10):
        rates = np.full(REPLICAS, HEALTHY)
        rates[BAD] += SALAD if t >= onset else 0.0
        if any(each.member == NAMES[BAD] for each in test.observe(t, _counts(random, rates, MINUTES_10))):
            return float((t - onset) / 3600)
    return float("inf")


def _accused_in_a_year(random: np.random.Generator, rate: float) -> int:
    test = _test()
    return sum(
        len(test.observe(t, _counts(random, np.full(REPLICAS, rate), HOURS_6)))
        for t in np.arange(0.0, 365 * 86_400, HOURS_6)
    )


def _counts(random: np.random.Generator, rates: np.ndarray[Any, np.dtype[np.float64]], seconds: float) -> Counts:
    requests = int(RATE * seconds)
    findings = random.poisson(rates * requests)
    return Counts(
        dict.fromkeys(NAMES, requests), {NAMES[each]: int(findings[each]) for each in np.flatnonzero(findings)}
    )
