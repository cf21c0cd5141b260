"""Loops per request and norm ratio of a looped model on the embedded engine, from the hook to the exposition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.dashboards.metrics import MOST_RATIO, Metrics
from checkengine.detectors.recurrence import LoopNorms
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.loop_tally import LoopTally
from checkengine.guards.events import LoopsMeasured
from checkengine.tiny import tiny_model, tiny_tokenizer

LOOPS, TOKENS = 5, 4


def norms(*states: list[float]) -> LoopNorms:
    hidden = np.array(states, np.float32)
    return LoopNorms(hidden, np.ones_like(hidden))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry(), "1")


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"checkengine_{name}", labels)


def test_a_requests_loops_add_up_over_its_passes_and_its_largest_ratio_stays() -> None:
    tally = LoopTally()
    tally.take(("a", "b"), norms([1, 1], [2, 4], [3, 2]))
    tally.take(("a",), norms([1], [4]))
    found = tally.end("a")
    assert (found.passes, found.loops, found.norm_ratio) == (2, 5, 4)
    assert tally.end("b").norm_ratio == 0.5
    assert tally.end("a") is None


def test_a_state_that_overflowed_has_an_infinite_ratio_and_a_bounded_sum(metrics: Metrics) -> None:
    tally = LoopTally()
    tally.take(("a", "b"), norms([1, np.inf], [np.inf, np.nan]))
    for name in "ab":
        metrics.handle(tally.end(name))
    assert sample(metrics, "loop_norm_ratio_sum") == 2 * MOST_RATIO
    assert sample(metrics, "loop_norm_ratio_bucket", le="10.0") == 0


def test_nothing_is_kept_of_a_sequence_that_is_over() -> None:
    tally = LoopTally()
    for number in range(1000):
        tally.take((f"r{number}",), norms([1], [1]))
        tally.end(f"r{number}")
    assert len(tally) == 0


class Loop(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, state: torch.Tensor, injected: torch.Tensor) -> torch.Tensor:
        return 0.5 * state + injected + 0.1 * torch.tanh(self.inner(state))


class Looper(torch.nn.Module):
    """h <- h / 2 + e + R(h), LOOPS times."""

    def __init__(self, block: Loop) -> None:
        super().__init__()
        self.block = block

    def forward(self, injected: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(injected)
        for _ in range(LOOPS):
            state = self.block(state, injected)
        return state


@pytest.fixture
def looped(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any, list[LoopsMeasured]]]:
    """An embedded engine on a tiny model with a block that runs LOOPS times; its shim; what the bus was told."""
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    model = tiny_model()
    block = Loop(model.model.layers[1].mlp)
    model.model.layers[1].mlp = Looper(block)
    settings = Settings.model_validate({"engine": {"block_size": 8, "blocks": 32, "threads": 1}})
    engine, shim = embed(model, tiny_tokenizer(), settings)
    told: list[LoopsMeasured] = []
    shim.assembly.bus.subscribe_sync(
        lambda event: told.append(event) if isinstance(event, LoopsMeasured) else None, name="test"
    )
    with shim.watch_loop(block, model):
        yield engine, shim, told
    shim.close()


def test_the_embedded_engine_tells_loops_and_norm_ratio_of_each_request(looped: Any, metrics: Metrics) -> None:
    engine, _, told = looped
    for name in ("one", "two"):
        sampling = SamplingParameters(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        engine.submit(GenerationRequest(name, [(7 * place) % 150 + 3 for place in range(11)], sampling))
    while engine.has_work:
        engine.step()
    engine.submit(GenerationRequest("three", [5, 6], SamplingParameters(temperature=0, max_tokens=1)))
    while engine.has_work:
        engine.step()
    assert {(each.sequence, each.passes, each.loops) for each in told} >= {
        ("one", TOKENS, TOKENS * LOOPS),
        ("two", TOKENS, TOKENS * LOOPS),
    }
    assert all(0 < each.norm_ratio < 3 for each in told)
    for each in told:
        metrics.handle(each)
    assert sample(metrics, "loops_per_request_count") == len(told)
    assert sample(metrics, "loops_per_request_bucket", le="32.0") == len(told)
    assert sample(metrics, "loops_per_request_bucket", le="16.0") == len(told) - 2
