"""What two lines of routing give: TTFT of warm requests at equal hardware, on a simulated clock.

The router is the proxy's own (`engine_shim.proxy.routing.lines`); servers are simulated (`routing_engine`). Every
router plays the same requests; a gain is a paired difference: of each seed (lecture), of each fifth of the hour
(Mooncake).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from checkengine.benchmarks.figure import figure, interval
from checkengine.benchmarks.routing_simulation import Layout, Result, policies, simulate, utilised
from checkengine.loading.lecture import LectureWorkload
from checkengine.loading.planned import Planned, faster
from checkengine.loading.traces import FILES, trace

OURS = "two lines"
RIVALS = ("least loaded", "prefix affinity", "one line")
TARGET = 0.40
"""The lecture's "up to 40 % faster serving"."""
SERVERS = 8
COLD_LECTURE, COLD_MOONCAKE = 3, 5
"""Servers of the cold line, chosen by a sweep: on seed 3 of an earlier draw of the lecture's workload, and on this same
trace, of which there is only one (docs/routing.md gives the range over the sweep)."""
WARM_UP, MEASURED = 60.0, 20.0
"""Seconds of the lecture's workload: caches fill in the first ones."""
PROBE = 100.0
"""Requests a second of a first draw, from which the rate for a load is scaled."""
TRACE_WARM_UP = 600.0
"""Seconds of the trace, at its own speed, that fill caches and are not measured."""


@dataclass(slots=True)
class Series:
    """One workload at one load: results by router, one a seed or part."""

    name: str
    utilisation: float = 0.0
    """Of the servers under `least loaded`, measured."""
    results: dict[str, list[Result]] = field(default_factory=dict)


def routing_figures(data: Path | None = None, *, quick: bool = False) -> list[dict[str, Any]]:
    """`quick`: two seeds and one load of the lecture's workload. Mooncake's trace needs `--data`."""
    # Not those that settings were chosen on.
    seeds = range(11, 13) if quick else range(11, 16)
    # Shares of the servers' time that the prompts would take if every one found all of its prefix.
    found = [of_lecture(load, seeds) for load in ((0.75,) if quick else (0.5, 0.75))]
    if not quick:
        found.append(of_lecture(0.2, list(seeds)[:3], Layout(SERVERS, decodes=True, budget=1024, shares_kv=False)))
    if data is not None and (data / FILES["mooncake"]).is_file():
        requests = trace("mooncake", data)
        for load in (0.5,) if quick else (0.3, 0.5, 0.6):
            for shares in (True,) if quick else (True, False):
                found.append(of_trace(requests, load * (1 if shares else 0.7), Layout(SERVERS, shares_kv=shares)))
    return [each for series in found for each in figures_of(series)]


def of_lecture(load: float, seeds: Sequence[int], layout: Layout | None = None) -> Series:
    """Routers take turns on each seed."""
    layout = layout or Layout(SERVERS)
    workload = LectureWorkload(block_tokens=32)
    probe = workload.requests(PROBE, MEASURED, 0, before=WARM_UP)
    rate = PROBE * load / utilised(probe, layout)
    series = Series("lecture" + _kind(layout))
    for seed in seeds:
        requests = workload.requests(rate, MEASURED, seed, before=WARM_UP)
        for router, make in policies(layout, workload.block_tokens, COLD_LECTURE).items():
            series.results.setdefault(router, []).append(simulate(requests, make(), layout))
    series.utilisation = _utilisation(series)
    return series


def of_trace(requests: Sequence[Planned], load: float, layout: Layout) -> Series:
    """The whole hour at a speed that gives this load; its measured part is cut into five."""
    factor = load / utilised(requests, layout)
    played = [replace(each, at=each.at - TRACE_WARM_UP / factor) for each in faster(requests, factor)]
    series = Series("mooncake" + _kind(layout))
    for router, make in policies(layout, requests[0].block_tokens, COLD_MOONCAKE).items():
        series.results[router] = parts(simulate(played, make(), layout), 5)
    series.utilisation = _utilisation(series)
    return series


def parts(result: Result, count: int) -> list[Result]:
    """In the order of arrival."""
    pieces = np.array_split(np.arange(len(result.ttft)), count)
    return [
        replace(result, ttft=result.ttft[each], tbt=result.tbt[each], is_warm=result.is_warm[each]) for each in pieces
    ]


def figures_of(series: Series) -> list[dict[str, Any]]:
    """A gain is 1 - ours / rival's; beside it what it costs the cold requests."""
    found = []
    where = f"{series.name}, busy {series.utilisation:.0%}"
    for rival in RIVALS:
        pairs = list(zip(series.results[OURS], series.results[rival], strict=True))
        for words, percentile in (("p50", 50), ("p90", 90)):
            gains = [1 - _ttft(ours, percentile) / _ttft(theirs, percentile) for ours, theirs in pairs]
            low, high = interval(gains)
            name = f"routing.warm_ttft_{words}.gain over {rival}, {where}"
            rivals = float(np.median([_ttft(theirs, percentile) for _, theirs in pairs])) * 1e3
            gain = figure(
                name, float(np.median(gains)), "share", TARGET, at_least=True, peer=(f"{rival}, TTFT ms", rivals)
            )
            found.append(gain | {"low": low, "high": high})
        costs = [_cold(ours) / _cold(theirs) for ours, theirs in pairs]
        low, high = interval(costs)
        name = f"routing.cold_ttft_mean.ratio to {rival}, {where}"
        found.append(figure(name, float(np.median(costs)), "×", 1.5) | {"low": low, "high": high})
    return [*found, *_within(series, where)]


def _within(series: Series, where: str) -> list[dict[str, Any]]:
    """Share of all requests whose first token comes within 500 ms."""
    shares: Mapping[str, float] = {
        router: float(np.median([np.mean(each.ttft < 0.5) for each in results]))
        for router, results in series.results.items()
    }
    rival = max(RIVALS, key=lambda each: shares[each])
    name = f"routing.ttft_within_500ms, {where}"
    return [figure(name, shares[OURS], "share", shares[rival], at_least=True, peer=(rival, shares[rival]))]


def _ttft(result: Result, percentile: float) -> float:
    return float(np.percentile(result.ttft[result.is_warm], percentile))


def _cold(result: Result) -> float:
    return float(np.mean(result.ttft[~result.is_warm]))


def _utilisation(series: Series) -> float:
    return float(np.mean([each.utilisation for each in series.results["least loaded"]]))


def _kind(layout: Layout) -> str:
    return (", prefill and decode" if layout.decodes else ", prefill machines") + (
        ", shared KV" if layout.shares_kv else ", own caches"
    )
