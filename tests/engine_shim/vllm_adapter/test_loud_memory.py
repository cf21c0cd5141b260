"""Loud memory of a vLLM worker: filled at the start, and again block by block when it is handed on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from checkengine.benchmarks.vllm_traffic import CachedRequests, Message, NewRequest
from checkengine.engine_shim.vllm.black_box import BlackBox
from checkengine.engine_shim.vllm.carried import ToWorkers, attach
from checkengine.engine_shim.vllm.loud_memory import LOUD, LOUD_HALF, LoudMemory
from checkengine.engine_shim.vllm.worker import Observer

SIZE = 4


def message(new: list[NewRequest], cached: CachedRequests | None = None) -> Message:
    return Message(new, cached or CachedRequests())


def runner_of(dtype: torch.dtype = torch.float32) -> Any:
    return SimpleNamespace(
        device=torch.device("cpu"), kv_caches=[torch.zeros(8, 1, SIZE, 4, dtype=dtype) for _ in range(2)]
    )


def test_blocks_that_hold_a_cached_prefix_are_left_alone() -> None:
    loud = LoudMemory(True)
    assert loud.fresh(message([NewRequest("a", [1] * 10, ([3, 4, 5],), 8)]), SIZE) == [5]
    assert loud.fresh(message([NewRequest("a", [1] * 10, ([3, 4, 5],), 0)]), SIZE) == [3, 4, 5]


def test_a_block_that_a_prefix_fills_in_part_is_left_alone() -> None:
    assert LoudMemory(True).fresh(message([NewRequest("a", [1] * 10, ([3, 4, 5],), 6)]), SIZE) == [5]


def test_a_growing_request_s_new_block_is_fresh_and_a_resumed_one_s_cached_blocks_are_not() -> None:
    cached = CachedRequests(
        req_ids=["a", "b", "c"],
        resumed_req_ids={"b"},
        new_block_ids=[([6],), ([2, 7],), None],
        num_computed_tokens=[9, 4, 3],
        num_output_tokens=[1, 0, 1],
    )
    assert LoudMemory(True).fresh(message([], cached), SIZE) == [6, 7]


def test_memory_that_is_not_loud_is_not_touched() -> None:
    runner = runner_of()
    loud = LoudMemory(False)
    loud.ready(runner)
    assert loud.fresh(message([NewRequest("a", [1], ([3],), 0)]), SIZE) == []
    assert not any(bool(cache.any()) for cache in runner.kv_caches)


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float32, LOUD), (torch.bfloat16, LOUD), (torch.float16, LOUD_HALF)]
)
def test_the_pattern_is_finite_in_every_dtype(dtype: torch.dtype, value: float) -> None:
    runner = runner_of(dtype)
    LoudMemory(True).ready(runner)
    for cache in runner.kv_caches:
        assert torch.equal(cache, torch.full_like(cache, value))
        assert bool(cache.isfinite().all())


def test_memory_of_another_kind_is_refused_once_and_the_worker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    runner = runner_of()
    runner.kv_caches = [torch.zeros(8, 4, dtype=torch.uint8)]
    observer = Observer(None, loud=LoudMemory(True))
    observer.ready(SimpleNamespace(model_runner=runner))
    assert "cannot be made loud" in caplog.text


def test_the_black_box_hears_of_a_fill_before_it_happens() -> None:
    """So that what was there can be brought back."""
    runner = runner_of()
    seen: list[tuple[list[int], float]] = []

    class Listener(BlackBox):
        def __init__(self) -> None: ...

        def between_steps(self, worker: Any, scheduler_output: Any) -> None: ...

        def filling(self, worker: Any, blocks: Any) -> None:
            seen.append((list(blocks), float(runner.kv_caches[0].sum())))

        def before_step(self, worker: Any, scheduler_output: Any) -> None:
            seen.append(([], float(runner.kv_caches[0][3, 0, 0, 0])))

    observer = Observer(None, [Listener()], LoudMemory(True))
    config = SimpleNamespace(cache_config=SimpleNamespace(block_size=SIZE))
    given = message([NewRequest("a", [1], ([3],), 0)])
    attach(given, ToWorkers(0))
    observer.before_step(SimpleNamespace(model_runner=runner, vllm_config=config), given)
    assert seen == [([3], 0.0), ([], float(np.float32(LOUD)))]
