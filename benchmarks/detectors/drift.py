"""Fleet drift: false alarms, delays, cost, and one replica against its siblings."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.benchmarks.detectors import DetectorOptions, drift_peers, drift_series, drift_siblings
from checkengine.benchmarks.figure import figure
from checkengine.detectors.drift.bank import CategoryBank, DriftBank
from checkengine.detectors.drift.explain import explain_drift
from checkengine.guards.drift import DriftGuard
from checkengine.guards.settings import DriftSettings

Figures = list[dict[str, Any]]
Floats = NDArray[np.float64]

ARL = DriftSettings().requests_per_false_alarm * DriftSettings().series
"""Updates of one series between false alarms, as the guard sets it."""
STRETCH = 20_000
"""Requests after which a null series gets a new baseline: the first ones after it are the hardest."""


def figures(options: DetectorOptions) -> Figures:
    found = drift_series.traces(options.data)
    peers = list(drift_peers.names(options.quick)) if drift_peers.available() else []
    return [
        *_quiet(options, found, peers),
        *_delays(options, peers),
        *_real_order(found, peers),
        *_explained(options),
        *_cost(peers),
        *drift_siblings.figures(options.quick),
    ]


def _quiet(options: DetectorOptions, traces: dict[str, tuple[Floats, Floats]], peers: list[str]) -> Figures:
    random = np.random.default_rng(6)
    requests = 100_000 if options.quick else 1_000_000
    makers = drift_series.independent()
    makers |= {
        f"{name} {side} shuffled": drift_series.shuffled(name, pair[index])
        for name, pair in traces.items()
        for index, side in enumerate(("input", "output"))
    }
    counted = {name: _alarms(make, random, requests) for name, make in makers.items()}
    counted["given a swinging input"] = _given_alarms(random, requests)
    counted["finish reasons"] = _category_alarms(random, requests)
    empirical = {name: _alarms(make, random, requests) for name, make in drift_series.autoregressive().items()}
    per_million = (sum(counted.values()) + sum(empirical.values())) / (requests / 1e6)
    name = f"false alarms in 10^6 requests, {len(counted) + len(empirical)} series together, {requests:,} requests"
    made = [figure(name, per_million, "alarms", 1.0, peer=_peer_alarms(peer, options)) for peer in peers]
    made = made or [figure(name, per_million, "alarms", 1.0)]
    worst = f"of these, AR(0.5) prewhitened, empirical: {len(empirical)} series"
    return [*made, figure(worst, sum(empirical.values()) / (requests / 1e6), "alarms", 1.0)]


def _alarms(make: drift_series.Make, random: np.random.Generator, requests: int) -> int:
    bank = DriftBank(requests // STRETCH, arl=ARL, seed=1)
    values = np.stack([make(random, STRETCH) for _ in range(len(bank))], axis=1)
    return len(bank.update(np.tile(np.arange(len(bank)), STRETCH), values.ravel()))


def _given_alarms(random: np.random.Generator, requests: int) -> int:
    bank = DriftBank(requests // STRETCH, strata=10, arl=ARL, seed=1)
    pairs = [drift_series.mixed(random, STRETCH) for _ in range(len(bank))]
    bands, values = (np.stack(side, axis=1).ravel() for side in zip(*pairs, strict=True))
    return len(bank.update(np.tile(np.arange(len(bank)), STRETCH), values, bands))


def _category_alarms(random: np.random.Generator, requests: int) -> int:
    bank = CategoryBank(requests // STRETCH, 4, arl=ARL)
    drawn = random.choice(3, (STRETCH, len(bank)), p=drift_series.FINISH_REASONS)
    return len(bank.update(np.tile(np.arange(len(bank)), STRETCH), drawn.ravel()))


def _peer_alarms(peer: str, options: DetectorOptions) -> tuple[str, float]:
    """On four of the series, scaled to as many series as ours."""
    random, length = np.random.default_rng(6), 5_000 if peer == "KSWIN" else 20_000
    makers = {**drift_series.independent(), **drift_series.autoregressive()}
    chosen = ("normal clipped", "lognormal 1", "valid or not", "AR(0.5) normal")
    counted = sum(len(drift_peers.alarms(peer, makers[name](random, length))) for name in chosen)
    return f"river {peer}, 4 series", counted / (length / 1e6)


def _delays(options: DetectorOptions, peers: list[str]) -> Figures:
    runs = 100 if options.quick else 400
    normal = drift_series.independent()["normal"]
    made: Figures = []
    for shift, baseline, target in ((0.5, 1000, 180.0), (1.0, 1000, 90.0), (0.2, 5000, 2000.0)):
        delays = _numeric_delays(runs, baseline, normal, partial(_shifted, shift=shift))
        name = f"delay of a shift of {shift} sd, {baseline:,} requests before"
        peer = "ADWIN" if "ADWIN" in peers else ""
        found = (f"river {peer}, median", _peer_delay(peer, shift, baseline)) if peer else None
        made.append(figure(f"{name}, median", float(np.median(delays)), "requests", target, peer=found))
        made.append(figure(f"{name}, mean", float(np.minimum(delays, 10_000).mean()), "requests", target))
    return made + _other_delays(runs, normal)


def _other_delays(runs: int, normal: drift_series.Make) -> Figures:
    def spread(values: Floats, random: np.random.Generator) -> Floats:
        return values * 1.3

    def tail(values: Floats, random: np.random.Generator) -> Floats:
        return np.where(random.random(len(values)) < 0.01, values + 8.0, values)

    skewed = drift_series.independent()["lognormal 1"]
    medians = {
        "delay of a shift of 0.5 sd of a lognormal series, 1,000 requests before": (
            _numeric_delays(runs, 1000, skewed, lambda values, _: values + 0.5 * 320.8),
            180.0,
        ),
        "delay of a spread of 1.3, nothing else, 1,000 requests before": (
            _numeric_delays(runs, 1000, normal, spread),
            2000.0,
        ),
        "delay of a tail of 1 % of requests, 5,000 requests before": (
            _numeric_delays(runs, 5000, normal, tail),
            2000.0,
        ),
        "delay of finish reason length from 5 to 10 %, 5,000 requests before": (_category_delays(runs), 2000.0),
    }
    return [figure(f"{name}, median", float(np.median(d)), "requests", target) for name, (d, target) in medians.items()]


def _shifted(values: Floats, random: np.random.Generator, *, shift: float) -> Floats:
    return values + shift


def _numeric_delays(
    runs: int, before: int, make: drift_series.Make, change: Callable[[Floats, np.random.Generator], Floats]
) -> Floats:
    """Of each run; infinite beyond 10,000 requests. A run with an alarm before the change is left out."""
    random = np.random.default_rng(7)
    bank = DriftBank(runs, arl=ARL, seed=2)
    numbers = np.arange(runs)
    early = bank.update(np.tile(numbers, before), _columns(make, random, before, runs).ravel())
    after = change(_columns(make, random, 10_000, runs).ravel(), random)
    return _first(bank.update(np.tile(numbers, 10_000), after), runs, {alarm.series for alarm in early})


def _category_delays(runs: int) -> Floats:
    random = np.random.default_rng(7)
    bank = CategoryBank(runs, 4, arl=ARL)
    numbers = np.arange(runs)
    before, after = (
        random.choice(3, n * runs, p=p) for n, p in ((5000, drift_series.FINISH_REASONS), (10_000, (0.88, 0.1, 0.02)))
    )
    early = bank.update(np.tile(numbers, 5000), before)
    return _first(bank.update(np.tile(numbers, 10_000), after), runs, {alarm.series for alarm in early})


def _first(alarms: list[Any], runs: int, left_out: set[int]) -> Floats:
    delays = np.full(runs, np.inf)
    for alarm in alarms:
        delays[alarm.series] = min(delays[alarm.series], alarm.index // runs + 1)
    return np.delete(delays, sorted(left_out))


def _columns(make: drift_series.Make, random: np.random.Generator, length: int, runs: int) -> Floats:
    return np.stack([make(random, length) for _ in range(runs)], axis=1)


def _peer_delay(peer: str, shift: float, baseline: int) -> float:
    random = np.random.default_rng(7)
    delays = []
    for _ in range(15):
        values = np.clip(random.normal(0.5, 0.15, baseline + 4000), 0, 1)
        values[baseline:] += shift * 0.15
        delays.append(drift_peers.first_after(peer, values, baseline))
    return float(np.median(delays))


def _real_order(traces: dict[str, tuple[Floats, Floats]], peers: list[str]) -> Figures:
    made: Figures = []
    for name, (prompts, completions) in traces.items():
        told = DriftGuard(DriftSettings()).update("completion_length", None, completions.tolist(), prompts.tolist())
        alone = DriftGuard(DriftSettings()).update("completion_length", None, completions.tolist())
        title = f"alarms on {name} in real order, completions given the prompt length, {len(prompts):,} requests"
        made.append(figure(title, float(len(told)), "alarms", 0.0, peer=("not given it", float(len(alone)))))
        for peer in peers[:1]:
            found = float(len(drift_peers.alarms(peer, completions)))
            made.append(figure(title, float(len(told)), "alarms", 0.0, peer=(f"river {peer}", found)))
    return made


def _explained(options: DetectorOptions) -> Figures:
    runs = 4 if options.quick else 12
    random = np.random.default_rng(8)
    right = 0
    for _ in range(runs):
        found = explain_drift(
            _requests(random, 2000), _requests(random, 2000, "r3"), ("replica", "kernel", "prefix_hit")
        )
        right += bool(found and found.moved and found.moved[0].feature == "entropy")
        right += bool(
            found and found.slices and (found.slices[0].attribute, found.slices[0].value) == ("replica", "r3")
        )
    claims = sum(
        explain_drift(_requests(random, 1000), _requests(random, 1000), ("replica", "kernel", "prefix_hit")) is not None
        for _ in range(3 * runs)
    )
    return [
        figure(
            "entropy + 1 sd on one replica of 8: feature and slice named",
            right / (2 * runs),
            "of runs",
            0.95,
            at_least=True,
        ),
        figure(f"explanations of no change, {3 * runs} runs", float(claims), "claims", max(1.0, 0.03 * runs)),
    ]


def _requests(random: np.random.Generator, n: int, bad: str = "") -> list[dict[str, Any]]:
    replicas = random.integers(0, 8, n)
    entropies = random.normal(size=n) + (replicas == int(bad[1:] or 0)) * bool(bad)
    lengths, hits, kernels = random.lognormal(5, 1, n), random.random(n) < 0.6, random.random(n) < 0.5
    return [
        {
            "entropy": float(entropies[row]),
            "length": float(lengths[row]),
            "replica": f"r{replicas[row]}",
            "prefix_hit": bool(hits[row]),
            "kernel": "paged" if kernels[row] else "reference",
        }
        for row in range(n)
    ]


def _cost(peers: list[str]) -> Figures:
    random = np.random.default_rng(9)
    series = np.tile(np.arange(64), 2000)
    values, strata = random.normal(size=len(series)), random.integers(0, 10, len(series))
    plain, given, names = (
        DriftBank(64, baseline=200),
        DriftBank(64, strata=10, baseline=200),
        CategoryBank(64, 4, baseline=200),
    )
    categories = random.choice(3, len(series), p=drift_series.FINISH_REASONS)
    peer = ("river ADWIN", drift_peers.nanoseconds("ADWIN", values[:20_000])) if peers else None
    guards = {"a series": DriftGuard(DriftSettings()), "a series given an input": DriftGuard(DriftSettings())}
    guards["a series"].update("x", None, values.tolist())
    guards["a series given an input"].update("x", None, values.tolist(), np.abs(values).tolist())
    return [
        figure(
            "an update, 64 series",
            _nanoseconds(lambda: plain.update(series, values), len(series)),
            "ns",
            400.0,
            peer=peer,
        ),
        figure(
            "an update given an input, 64 series",
            _nanoseconds(lambda: given.update(series, values, strata), len(series)),
            "ns",
            400.0,
        ),
        figure(
            "an update of categories, 64 series",
            _nanoseconds(lambda: names.update(series, categories), len(series)),
            "ns",
            400.0,
        ),
        *(
            figure(f"state of {name}, sketch included", float(guard.state_bytes), "bytes", 4096.0)
            for name, guard in guards.items()
        ),
    ]


def _nanoseconds(call: Callable[[], object], updates: int) -> float:
    call()
    taken = []
    for _ in range(5):
        began = time.process_time_ns()
        call()
        taken.append((time.process_time_ns() - began) / updates)
    return float(np.median(taken))
