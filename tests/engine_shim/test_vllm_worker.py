"""The observing vLLM worker, on doubles of both of vLLM's model runners. Nothing in it waits for a device."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from checkengine.engine_shim.vllm import reading as reading_module
from checkengine.engine_shim.vllm.carried import ToWorkers, attach, reading_of
from checkengine.engine_shim.vllm.reading import read, rows_v1, rows_v2
from checkengine.engine_shim.vllm.worker import Observer, ObservingWorker, refill_blocks

VOCABULARY = 32
SYNCS = ("aten._local_scalar_dense", "aten.nonzero", "aten.is_nonzero", "aten.equal", "aten.unique")
"""Operators that wait for a device to know a number or a shape."""


class NoSyncs(TorchDispatchMode):
    """Fails on what would wait for a device. Logits in CPU memory stand for those on one: a copy between devices
    shows as `_to_copy` with the CPU as its target."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function)
        given = dict(kwargs or {})
        copied = name.startswith("aten._to_copy") and str(given.get("device")) == "cpu"
        if name.startswith(SYNCS) or copied or (name.startswith("aten.index") and masks(args)):
            raise AssertionError(f"{name} waits for the device")
        return function(*args, **given)


def masks(arguments: Any) -> bool:
    """Indexing by a mask has to count it first."""
    given = arguments[1] if isinstance(arguments[1], (list, tuple)) else ()
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in given)


class V1Runner:
    """vLLM's GPUModelRunner as far as it is read: logits lie in `execute_model_state` between the two calls."""

    def __init__(self, logits: torch.Tensor, requests: list[str], drafts: list[int] | None = None) -> None:
        self.device = torch.device("cpu")
        self.input_batch = SimpleNamespace(req_ids=requests)
        self.execute_model_state: Any = None
        self._logits = logits
        self._metadata = None if drafts is None else SimpleNamespace(num_draft_tokens=drafts)
        self.zeroed: list[int] = []

    def execute_model(self, message: Any) -> None:
        self.execute_model_state = SimpleNamespace(logits=self._logits, spec_decode_metadata=self._metadata)

    def sample_tokens(self, grammar: Any) -> Any:
        self.execute_model_state.logits.fill_(-torch.inf)  # the grammar's mask, in place
        self.execute_model_state = None
        return SimpleNamespace(req_ids=list(self.input_batch.req_ids), sampled_token_ids=[[1]])

    def _zero_block_ids(self, blocks: list[int]) -> None:
        self.zeroed += blocks


class V2Runner:
    """vLLM's V2 runner: logits are computed inside `sample_tokens`; warm-ups and prompt logprobs compute some too."""

    def __init__(self, logits: torch.Tensor, requests: list[str], cumulative: list[int]) -> None:
        self.device = torch.device("cpu")
        self.model = SimpleNamespace(compute_logits=lambda hidden: hidden)
        self.execute_model_state: Any = None
        self._logits = logits
        self._batch = SimpleNamespace(
            req_ids=[*requests, "padding"], num_reqs=len(requests), cu_num_logits_np=np.array([*cumulative, 99])
        )
        self.kv_block_zeroer: Any = None
        self.zeroed: list[int] = []

    def execute_model(self, message: Any) -> None:
        self.model.compute_logits(torch.full((7, VOCABULARY), torch.nan))
        self.execute_model_state = SimpleNamespace(input_batch=self._batch)

    def sample_tokens(self, grammar: Any) -> Any:
        logits = self.model.compute_logits(self._logits)
        logits.fill_(-torch.inf)
        self.model.compute_logits(torch.full((5, VOCABULARY), torch.nan))
        return SimpleNamespace(req_ids=self._batch.req_ids[:-1], sampled_token_ids=[[1]])

    def _init_kv_zero_meta(self) -> None:
        self.kv_block_zeroer = SimpleNamespace(zero_block_ids=self.zeroed.extend)


class PlainWorker:
    def __init__(self, runner: Any) -> None:
        self.model_runner = runner
        self.use_v2_model_runner = isinstance(runner, V2Runner)
        self.model_config = SimpleNamespace(dtype=torch.float32, get_vocab_size=lambda: VOCABULARY)
        self.ended = False

    def load_model(self) -> None: ...

    def execute_model(self, message: Any) -> Any:
        return self.model_runner.execute_model(message)

    def sample_tokens(self, grammar: Any) -> Any:
        return self.model_runner.sample_tokens(grammar)

    def shutdown(self) -> None:
        self.ended = True


class Worker(ObservingWorker, PlainWorker):
    """As the face derives it."""


def worker(runner: Any, make: Callable[[], Observer] | None = None) -> Worker:
    made = Worker(runner)
    if make is not None:
        made.make_observer = make  # type: ignore[method-assign]
    made.load_model()
    return made


def step(made: Worker) -> Any:
    made.execute_model(SimpleNamespace())
    return made.sample_tokens(None)


def logits_with_nan(rows: int, row: int) -> torch.Tensor:
    logits = torch.randn(rows, VOCABULARY)
    logits[row, 3] = torch.nan
    return logits


def test_v1_logits_are_read_in_front_of_the_grammar_s_mask() -> None:
    found = reading_of(step(worker(V1Runner(logits_with_nan(2, 1), ["a", "b"]))))
    assert found is not None
    assert found.requests == ("a", "b")
    assert found.stats.nonfinite.tolist() == [False, True]
    assert found.stats.negative_infinite.tolist() == [0, 0]  # type: ignore[union-attr]


def test_v2_logits_are_those_of_sampling_not_of_warm_ups_or_prompt_logprobs() -> None:
    found = reading_of(step(worker(V2Runner(logits_with_nan(3, 2), ["a", "b"], [0, 1, 3]))))
    assert found is not None
    assert found.requests == ("a", "b")
    assert found.of.tolist() == [0, 1, 1]
    assert found.stats.nonfinite.tolist() == [False, False, True]


def test_verified_drafts_give_their_request_a_row_each_and_one_more() -> None:
    assert rows_v1(3, SimpleNamespace(num_draft_tokens=[0, 2, 1])).tolist() == [0, 1, 1, 1, 2, 2]
    assert rows_v1(3, None).tolist() == [0, 1, 2]
    assert rows_v2(SimpleNamespace(num_reqs=2, cu_num_logits_np=np.array([0, 2, 3, 9]))).tolist() == [0, 0, 1]


def test_rows_that_do_not_fit_the_requests_are_no_reading_and_no_failure() -> None:
    made = worker(V1Runner(logits_with_nan(3, 0), ["a", "b"]))
    assert reading_of(step(made)) is None


def test_an_output_that_is_still_being_copied_gets_its_reading_when_it_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class AsyncModelRunnerOutput: ...

    outputs = types.ModuleType("vllm.v1.outputs")
    outputs.AsyncModelRunnerOutput = AsyncModelRunnerOutput  # type: ignore[attr-defined]
    for name, module in {"vllm": types.ModuleType("vllm"), "vllm.v1": types.ModuleType("vllm.v1")}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "vllm.v1.outputs", outputs)
    runner = V1Runner(logits_with_nan(1, 0), ["a"])
    ready = SimpleNamespace(req_ids=["a"], sampled_token_ids=[[1]])
    runner.sample_tokens = lambda grammar: SimpleNamespace(get_output=lambda: ready)  # type: ignore[method-assign]
    made = worker(runner)
    from checkengine.engine_shim.vllm.worker import observed_output

    observed_output.cache_clear()
    output = step(made)
    observed_output.cache_clear()
    assert isinstance(output, AsyncModelRunnerOutput)
    assert reading_of(ready) is None
    found = reading_of(output.get_output())
    assert found is not None
    assert found.stats.nonfinite.tolist() == [True]


def test_blocks_are_refilled_before_the_step_and_after_the_black_box_has_seen_them() -> None:
    runner = V1Runner(torch.zeros(1, VOCABULARY), ["a"])
    seen: list[list[int]] = []

    class Listener:
        def between_steps(self, worker: Any, message: Any) -> None:
            seen.append(list(runner.zeroed))

        before_step = between_steps

        def raw_logits(self, worker: Any, logits: torch.Tensor) -> None: ...

        def after_step(self, worker: Any, output: Any, reading: Any) -> None: ...

    made = worker(runner, lambda: Observer(None, [Listener()]))
    message = SimpleNamespace()
    attach(message, ToWorkers(4, (7, 9)))
    made.execute_model(message)
    assert seen == [[], [7, 9]], "captured before the refill, and recorded after it"
    assert runner.zeroed == [7, 9]


def test_v2_s_zeroer_is_made_where_the_model_needed_none() -> None:
    runner = V2Runner(torch.zeros(1, VOCABULARY), ["a"], [0, 1])
    refill_blocks(runner, [3])
    assert runner.zeroed == [3]


def test_a_listener_that_raises_is_left_out_after_three_times_and_serving_goes_on() -> None:
    calls: list[str] = []

    class Broken:
        def before_step(self, worker: Any, message: Any) -> None:
            calls.append("before")
            raise RuntimeError("broken")

        def raw_logits(self, worker: Any, logits: torch.Tensor) -> None: ...

        def after_step(self, worker: Any, output: Any, reading: Any) -> None: ...

        def close(self) -> None:
            raise RuntimeError("broken")

    made = worker(V1Runner(logits_with_nan(1, 0), ["a"]), lambda: Observer(None, [Broken()]))
    for _ in range(5):
        made.model_runner.input_batch.req_ids = ["a"]
        assert step(made).sampled_token_ids == [[1]]
    assert len(calls) == 3
    made.shutdown()
    assert made.ended


def test_a_listener_that_went_off_is_tried_again_when_the_scheduler_says_so() -> None:
    calls: list[str] = []

    class Mended:
        def raw_logits(self, worker: Any, logits: torch.Tensor) -> None:
            calls.append("logits")
            if len(calls) <= 3:
                raise RuntimeError("broken")

    made = worker(V1Runner(logits_with_nan(1, 0), ["a"]), lambda: Observer(None, [Mended()]))  # type: ignore[list-item]
    for _ in range(5):
        step(made)
    assert len(calls) == 3
    message = SimpleNamespace()
    attach(message, ToWorkers(arm=True))
    made.execute_model(message)
    assert len(calls) == 4


def test_a_worker_whose_configuration_cannot_be_read_measures_with_defaults() -> None:
    def broken() -> Observer:
        raise OSError("no such file")

    assert reading_of(step(worker(V1Runner(logits_with_nan(1, 0), ["a"]), broken))) is not None


@pytest.mark.parametrize("level", ["screen", "full"])
@pytest.mark.parametrize("runner", [V1Runner, V2Runner])
def test_no_step_of_a_worker_waits_for_the_device(level: Any, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_device(monkeypatch)
    made = worker(in_batch(runner), lambda: Observer(level))
    with NoSyncs():
        output = step(made)
    assert reading_of(output) is not None


@pytest.mark.parametrize(
    "planted",
    [
        lambda logits: logits.max().item(),
        lambda logits: bool(logits.isnan().any()),
        lambda logits: logits.isnan().nonzero(),
        lambda logits: logits[logits > 0],
    ],
)
def test_a_planted_wait_is_noticed(planted: Callable[[torch.Tensor], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""
    as_on_a_device(monkeypatch)
    measure = reading_module.pending_row_stats

    def slow(logits: torch.Tensor, level: Any) -> Any:
        planted(logits)
        return measure(logits, level)

    monkeypatch.setattr(reading_module, "row_stats", slow)
    with NoSyncs(), pytest.raises(AssertionError, match="waits for the device"):
        read(torch.randn(2, VOCABULARY), ("a", "b"), np.arange(2, dtype=np.int32), None)


def in_batch(runner: Any) -> Any:
    return runner(torch.randn(2, VOCABULARY), ["a", "b"], *([[0, 1, 2]] if runner is V2Runner else []))


def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of logits that are not in CPU memory: kernels are enqueued, and the result is fetched later."""
    monkeypatch.setattr(reading_module, "row_stats", reading_module.pending_row_stats)
