"""Series over all requests of a model."""

from __future__ import annotations

import weakref

from checkengine.engine_shim.proxy.fleet_series import BATCH, MOST_MODELS, FleetSeries
from checkengine.engine_shim.proxy.parts import ExchangeEnd
from checkengine.guards import GuardsSettings
from checkengine.guards.drift import SeriesDriftGuard


def end(model: str, tokens: int, reason: str = "stop", **more: object) -> ExchangeEnd:
    return ExchangeEnd("r", model, status=200, finish_reasons=(reason,), output_tokens=tokens, ttft_seconds=0.1, **more)


class Keeping:
    name, version = "keeping", 1

    def __init__(self, series: str, kept: dict) -> None:
        self._values = kept.setdefault(series, [])

    def push(self, value, t=None):
        self._values.append(value)
        if value == 13.0:
            raise RuntimeError("planted")
        return ()

    def end(self):
        return ()


def test_answers_that_grow_are_a_drift_of_their_model() -> None:
    told = []
    settings = GuardsSettings().drift
    series = FleetSeries(
        lambda name: SeriesDriftGuard(name, settings), lambda model, finding: told.append((model, finding.kind))
    )
    for number in range(2500):
        series.ended(end("m", (100 if number < 1500 else 180) + number * 7919 % 37))
        series.ended(end("calm", 100 + number * 7919 % 37))
        if number % BATCH == 0:
            series.settle()
    series.close(60)
    assert series.dropped == 0
    assert ("m", "drift.output_tokens") in told
    assert all(model != "calm" for model, _ in told)


def test_requests_that_failed_have_no_length() -> None:
    kept: dict = {}
    series = FleetSeries(lambda name: Keeping(name, kept), lambda *_: None)
    series.ended(end("m", 5))
    series.ended(ExchangeEnd("r", "m", status=500))
    series.ended(end("m", 7, error="client_gone"))
    series.close()
    assert kept == {"output_tokens": [5.0], "finish_reason": ["stop"], "ttft": [0.1]}


def test_a_guard_that_raises_reads_no_more_of_its_series() -> None:
    kept: dict = {}
    series = FleetSeries(lambda name: Keeping(name, kept), lambda *_: None)
    for _ in range(3 * BATCH):
        series.ended(end("m", 13))
    series.close()
    assert kept["output_tokens"] == [13.0]
    assert len(kept["finish_reason"]) == 3 * BATCH


def test_as_many_models_are_followed_as_are_allowed() -> None:
    kept: dict = {}
    series = FleetSeries(lambda name: Keeping(name, kept), lambda *_: None)
    for number in range(MOST_MODELS + 5):
        series.ended(end(f"m{number}", 5))
    series.close()
    assert len(kept["output_tokens"]) == MOST_MODELS


def test_no_guard_of_a_series_outlives_its_end():
    made = []

    def make(name):
        guard = Weak(name, {})
        made.append(weakref.ref(guard))
        return guard

    series = FleetSeries(make, lambda model, finding: None)
    for number in range(BATCH):
        series.ended(end("m", number))
    series.close()
    assert made
    assert all(guard() is None for guard in made)


class Weak(Keeping):
    """May be watched."""
