"""A vLLM worker that observes: raw logits' statistics leave with each step's output. It decides nothing."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from checkengine.detectors import warm_up
from checkengine.detectors.logits.stats import Level
from checkengine.engine_shim.parts import Part
from checkengine.engine_shim.vllm.carried import StepReading, attach, orders_of
from checkengine.engine_shim.vllm.loud_memory import LoudMemory
from checkengine.engine_shim.vllm.reading import ComputeLogitsWatch, PendingReading, read, read_v1, rows_v2

logger = logging.getLogger("vllm.checkengine")


class WorkerListener(Protocol):
    """Sees what a worker is told and what it computed, in its own process: the black box is one. What it raises
    switches it off after the third time in a row; serving goes on. A method that it lacks is left out."""

    def between_steps(self, worker: Any, scheduler_output: Any) -> None:
        """Before blocks are refilled, and before `before_step`."""

    def filling(self, worker: Any, blocks: list[int]) -> None:
        """Before whole blocks are overwritten between two steps, other than those that the message says."""

    def before_step(self, worker: Any, scheduler_output: Any) -> None:
        """Before `execute_model` touches anything."""

    def raw_logits(self, worker: Any, logits: torch.Tensor) -> None:
        """Shape (rows, vocabulary), in front of every mask; on ranks that have them. Not to be kept or changed."""

    def after_step(self, worker: Any, output: Any, reading: StepReading | None) -> None:
        """The step's tokens are there: `output` is vLLM's ModelRunnerOutput. Under async scheduling it comes from
        another thread, and the next step may have begun."""


class Observer:
    """The state that an observing worker keeps. No call of it raises."""

    def __init__(
        self, level: Level | None, listeners: Sequence[WorkerListener] = (), loud: LoudMemory | None = None
    ) -> None:
        self.level = level
        self.loud = loud or LoudMemory(False)
        self.listeners = list(listeners)
        self.measures = True
        """False leaves logits alone; listeners go on."""
        self.cpu_seconds = 0.0
        """CPU time in here on the worker's threads, since the start."""
        self._measuring = Part("measuring logits in vLLM")
        self._refilling = Part("refilling quarantined KV blocks")
        self._loud = Part("loud KV memory")
        self._attaching = Part("sending statistics to the scheduler")
        self._parts: dict[tuple[int, str], Part] = {}
        self._pending: PendingReading | None = None
        self._off = False
        self._watch: ComputeLogitsWatch | None = None
        self._requests: tuple[tuple[str, ...], Any] | None = None

    def loaded(self, worker: Any) -> None:
        """Before the engine is ready: compile, and watch `compute_logits` where the runner keeps logits to itself."""
        self._measuring.run(self._prepare, worker)

    def ready(self, worker: Any) -> None:
        """KV memory is allocated, and no request has come yet: what takes time is done now."""
        self._loud.run(self.loud.ready, worker.model_runner)
        for listener in self.listeners:
            if hasattr(listener, "ready"):
                Part(f"{type(listener).__name__}.ready").run(listener.ready, worker)

    def before_step(self, worker: Any, scheduler_output: Any) -> None:
        started = time.thread_time_ns()
        self._pending = None
        orders = orders_of(scheduler_output)
        self._off = orders.off
        if orders.arm:
            self._arm()
        # The black box first: what is refilled is the evidence of what it is told to capture.
        if not self._off:
            self._tell("between_steps", worker, scheduler_output)
        if orders.refill:
            self._refilling.run(refill_blocks, worker.model_runner, list(orders.refill))
        if self.loud.on and not self._off:
            self._loud.run(self._fill_loud, worker, scheduler_output)
        if not self._off:
            self._tell("before_step", worker, scheduler_output)
        self._spent(started)

    def forward_done(self, worker: Any) -> None:
        """`execute_model` returned None: V1's logits are there now, V2's batch is known."""
        if self._off:
            return
        started = time.thread_time_ns()
        if self._watch is None:
            self._measuring.run(self._measure_v1, worker)
        else:
            self._measuring.run(self._expect_v2, worker.model_runner)
        self._spent(started)

    def sampled(self, worker: Any, output: Any) -> Any:
        """The output of `sample_tokens`, with the step's reading on it."""
        pending, self._pending = self._pending, None
        if self._watch is not None:
            self._watch.armed = False
        if output is None or self._off or (pending is None and not self.listeners):
            return output
        if hasattr(output, "get_output"):
            return observed_output()(output, functools.partial(self._finish, worker, pending))
        self._finish(worker, pending, output)
        return output

    def close(self) -> None:
        """Listeners write what waits."""
        for listener in self.listeners:
            if hasattr(listener, "close"):
                Part(f"closing {type(listener).__name__}").run(listener.close)

    def _arm(self) -> None:
        for part in (self._measuring, self._refilling, self._loud, self._attaching, *self._parts.values()):
            part.arm()

    def _fill_loud(self, worker: Any, scheduler_output: Any) -> None:
        blocks = self.loud.fresh(scheduler_output, int(worker.vllm_config.cache_config.block_size))
        if blocks:
            self._tell("filling", worker, blocks)
            self.loud.fill(worker.model_runner, blocks)

    def _prepare(self, worker: Any) -> None:
        runner = worker.model_runner
        device = torch.device(getattr(runner, "device", "cpu"))
        warm_up((torch.float32, worker.model_config.dtype), device.type, worker.model_config.get_vocab_size())
        if not hasattr(runner.execute_model_state, "logits") and worker.use_v2_model_runner:
            self._watch = ComputeLogitsWatch(runner.model, lambda logits: self._seen_v2(worker, logits))

    def _measure_v1(self, worker: Any) -> None:
        if self.measures:
            self._pending = read_v1(worker.model_runner, self.level)
        logits = getattr(worker.model_runner.execute_model_state, "logits", None)
        if self.listeners and logits is not None:
            self._tell("raw_logits", worker, logits)

    def _expect_v2(self, runner: Any) -> None:
        state = runner.execute_model_state
        if state is not None and self._watch is not None:
            batch = state.input_batch
            self._requests = tuple(batch.req_ids[: batch.num_reqs]), rows_v2(batch)
            self._watch.armed = True

    def _seen_v2(self, worker: Any, logits: torch.Tensor) -> None:
        started = time.thread_time_ns()
        self._measuring.run(self._measure_v2, logits)
        self._tell("raw_logits", worker, logits)
        self._spent(started)

    def _measure_v2(self, logits: torch.Tensor) -> None:
        if self.measures and self._requests is not None and len(logits):
            self._pending = read(logits, *self._requests, self.level)

    def _finish(self, worker: Any, pending: PendingReading | None, output: Any) -> None:
        started = time.thread_time_ns()
        self._attaching.run(self._attach, worker, pending, output)
        self._spent(started)

    def _spent(self, started: int) -> None:
        self.cpu_seconds += (time.thread_time_ns() - started) * 1e-9

    def _attach(self, worker: Any, pending: PendingReading | None, output: Any) -> None:
        reading = pending.collect() if pending is not None else None
        if reading is not None:
            attach(output, reading)
        self._tell("after_step", worker, output, reading)

    def _tell(self, name: str, *arguments: Any) -> None:
        for listener in self.listeners:
            key = id(listener), name
            if (part := self._parts.get(key)) is None:
                part = self._parts[key] = Part(f"{type(listener).__name__}.{name}")
            if (call := getattr(listener, name, None)) is not None:
                part.run(call, *arguments)


class ObservingWorker:
    """Put in front of a vLLM worker class: `class Mine(ObservingWorker, CPUWorker)`. The face says how its observer is
    made."""

    _observer: Observer | None = None
    _all_listeners: list[WorkerListener] | None = None

    def make_observer(self) -> Observer:
        return Observer(None)

    @property
    def observer(self) -> Observer:
        if self._observer is None:
            self._observer = made_or_blind(self.make_observer)
        return self._observer

    def load_model(self, *arguments: Any, **keywords: Any) -> Any:
        result = super().load_model(*arguments, **keywords)  # type: ignore[misc]
        self.observer.loaded(self)
        return result

    def compile_or_warm_up_model(self) -> Any:
        result = super().compile_or_warm_up_model()  # type: ignore[misc]
        self.observer.ready(self)
        return result

    def execute_model(self, scheduler_output: Any) -> Any:
        self.observer.before_step(self, scheduler_output)
        output = super().execute_model(scheduler_output)  # type: ignore[misc]
        if output is None:
            self.observer.forward_done(self)
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)  # type: ignore[misc]
        return self.observer.sampled(self, output)

    def checkengine_set(self, level: Level | None, measures: bool, black_box: bool) -> None:
        """Run-time switches, for `collective_rpc("checkengine_set", args=(…))`."""
        observer = self.observer
        if self._all_listeners is None:
            self._all_listeners = observer.listeners
        observer.level, observer.measures = level, measures
        observer.listeners = self._all_listeners if black_box else []

    def checkengine_loud(self, on: bool) -> None:
        """Blocks are filled from the next one on that is handed on, or no more."""
        self.observer.loud.on = on

    def checkengine_cpu_seconds(self) -> float:
        return self.observer.cpu_seconds

    def shutdown(self) -> None:
        self.observer.close()
        super().shutdown()  # type: ignore[misc]


def made_or_blind(make: Callable[[], Observer]) -> Observer:
    """An observer that cannot be made as configured still lets the engine run, and measures."""
    try:
        return make()
    except Exception:
        logger.exception("checkengine: this worker's configuration cannot be read; it measures with defaults")
        return Observer(None)


def refill_blocks(runner: Any, blocks: list[int]) -> None:
    """Zero whole KV blocks through vLLM's own zeroer; V1's and V2's runners make theirs only for some models."""
    if hasattr(runner, "kv_block_zeroer"):
        if runner.kv_block_zeroer is None:
            runner._init_kv_zero_meta()
        runner.kv_block_zeroer.zero_block_ids(blocks)
        return
    if runner.device.type != "cpu" and not hasattr(runner, "_kv_block_zeroer"):
        runner._init_kv_zero_meta()
    runner._zero_block_ids(blocks)


@functools.cache
def observed_output() -> type:
    """vLLM's output that is still being copied; its class is asked for by isinstance, so ours derives from it."""
    from vllm.v1.outputs import AsyncModelRunnerOutput

    class ObservedOutput(AsyncModelRunnerOutput):  # type: ignore[misc]
        def __init__(self, inner: Any, finish: Callable[[Any], None]) -> None:
            self._inner, self._finish = inner, finish

        def get_output(self) -> Any:
            output = self._inner.get_output()
            self._finish(output)
            return output

    return ObservedOutput
