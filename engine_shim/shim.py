"""The shim: between the engine's logits and its sampler, and between its sampler and its commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors import row_stats
from checkengine.detectors.logits.stats import Level, RowStats
from checkengine.engine_shim.adapter import EngineAdapter
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.bus import EventBus
from checkengine.guards.events import ActionTaken, StepMeasured
from checkengine.guards.finding import Finding
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.policy import Policy
from checkengine.guards.step import SequenceStart, StepView
from checkengine.replay.record import StepRecord
from checkengine.replay.recorder import Recorder

logger = logging.getLogger("checkengine.shim")

FULL_ROWS = 8
"""Level `auto` measures in full up to this many rows and screens above: the budget is 1 % of a step."""

FAILURES = 3
"""A part of the shim that fails this often in a row is switched off until it is armed again."""


class StepListener(Protocol):
    """Sees a step after its guards, before its tokens are committed: captures and audits."""

    def step_done(self, record: StepRecord, findings: list[Finding], actions: list[Action]) -> None: ...


@dataclass(slots=True)
class Part:
    """A part that fails open: it is left out once it failed `FAILURES` times in a row."""

    name: str
    failures: int = 0
    off: bool = False

    def run(self, call: Callable[[], None]) -> None:
        if self.off:
            return
        try:
            call()
            self.failures = 0
        except Exception:
            self._failed()

    def _failed(self) -> None:
        self.failures += 1
        if self.failures == 1:
            logger.exception("%s failed; serving goes on without it for this step", self.name)
        if self.failures >= FAILURES:
            self.off = True
            logger.error("%s failed %d times in a row and is off; arm it again at run time", self.name, self.failures)


@dataclass(slots=True)
class ShimParts:
    """What a shim is made of; the face assembles it."""

    pipeline: Pipeline
    policy: Policy
    bus: EventBus
    recorder: Recorder | None = None
    listeners: list[StepListener] = field(default_factory=list)
    level: Level | None = None
    """None chooses by the number of rows (`auto`)."""


class Shim:
    """One thread drives the steps. Nothing that fails in here reaches the engine (design rule 6)."""

    def __init__(self, adapter: EngineAdapter, parts: ShimParts) -> None:
        self.adapter = adapter
        self.parts = parts
        self.enabled = True
        """False leaves the engine alone from the next step on: the switch for the whole sidecar."""
        self.cpu_seconds = 0.0
        """CPU time that this thread spent in guards and recorder since the start."""
        self._live: dict[int, SequenceStart] = {}
        self._measuring = Part("measuring logits")
        self._recording = Part("the recorder")
        self._guarding = Part("the guards")
        self._listening = Part("captures and audits")

    def step(self, record: StepRecord) -> StepScope:
        """Context of one step; call `logits` and `tokens` inside it, in this order."""
        return StepScope(self, record)

    def arm(self) -> None:
        """Switch everything on again that failed or was switched off as a whole."""
        self.enabled = True
        for part in (self._measuring, self._recording, self._guarding, self._listening):
            part.failures, part.off = 0, False

    def failed_parts(self) -> list[str]:
        return [p.name for p in (self._measuring, self._recording, self._guarding, self._listening) if p.off]

    def level_for(self, rows: int) -> Level:
        return self.parts.level or ("full" if rows <= FULL_ROWS else "screen")

    def _follow(self, record: StepRecord) -> None:
        """Sequences come and go whether or not the guards are switched on."""
        for handle in record.ended:
            start = self._live.pop(handle, None)
            if start is not None:
                self._guarding.run(lambda name=start.name: self._forget(name))  # type: ignore[misc]
        for start in record.begun:
            self._live[start.handle] = start
            self._guarding.run(lambda start=start: self._begin(start))  # type: ignore[misc]

    def _begin(self, start: SequenceStart) -> None:
        self.parts.pipeline.begin(start)
        self.parts.policy.begin(start.name, time.time())

    def _forget(self, name: str) -> None:
        self.parts.pipeline.forget(name)
        self.parts.policy.forget(name)


class StepScope:
    """One step under watch."""

    __slots__ = ("_actions", "_cpu", "_findings", "_record", "_shim", "_started", "_stats")

    def __init__(self, shim: Shim, record: StepRecord) -> None:
        self._shim = shim
        self._record = record
        self._stats: RowStats | None = None
        self._findings: list[Finding] = []
        self._actions: list[Action] = []
        self._cpu = 0
        self._started = 0.0

    def __enter__(self) -> StepScope:
        self._started = time.perf_counter()
        before = time.thread_time_ns()
        shim, record = self._shim, self._record
        shim._follow(record)
        recorder = shim.parts.recorder
        if shim.enabled and recorder is not None:
            shim._recording.run(lambda: recorder.begin(record))
        self._cpu += time.thread_time_ns() - before
        return self

    def logits(self, logits: torch.Tensor) -> None:
        """Raw logits of the sampling rows, shape (rows, vocabulary), before masks and penalties; returns at once."""
        if not self._shim.enabled or not len(logits):
            return
        before = time.thread_time_ns()
        self._shim._measuring.run(lambda: self._measure(logits))
        self._cpu += time.thread_time_ns() - before

    def tokens(self, tokens: NDArray[np.int32]) -> list[Action]:
        """Tokens sampled for the sampling rows, shape (rows,); returns what is to be done before they are committed."""
        if not self._shim.enabled:
            return []
        before = time.thread_time_ns()
        shim = self._shim
        if len(tokens):
            shim._guarding.run(lambda: self._guard(tokens))
        shim._recording.run(lambda: self._finish(tokens))
        if shim.parts.listeners:
            shim._listening.run(self._tell_listeners)
        self._cpu += time.thread_time_ns() - before
        return self._actions

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shim.cpu_seconds += self._cpu * 1e-9
        record, bus = self._record, self._shim.parts.bus
        now = time.time()
        for action in self._actions:
            if action.kind is not ActionKind.OBSERVE:
                bus.publish(ActionTaken(action, now))
        seconds = time.perf_counter() - self._started
        bus.publish(
            StepMeasured(record.step, len(record.handles), len(record.token_ids), seconds, self._cpu * 1e-9, now)
        )

    def _measure(self, logits: torch.Tensor) -> None:
        self._stats = row_stats(logits, self._shim.level_for(len(logits)))

    def _guard(self, tokens: NDArray[np.int32]) -> None:
        parts = self._shim.parts
        self._findings = parts.pipeline.observe(self._view(tokens))
        if self._findings:
            self._actions = parts.policy.decide(self._findings, time.time())
            for action in self._actions:
                if action.kind is ActionKind.RETRY:
                    parts.pipeline.restart(action.sequence)

    def _view(self, tokens: NDArray[np.int32]) -> StepView:
        record, live = self._record, self._shim._live
        starts = [live[handle] for handle in record.sampling_handles.tolist()]
        prompts = np.array([len(start.prompt_tokens) for start in starts], np.int32)
        known = (record.starts + record.query_lengths)[record.samples]
        return StepView(
            step=record.step,
            time=self._started,
            sequences=tuple(start.name for start in starts),
            tokens=tuple([(token,) for token in tokens.tolist()]),
            stats=self._stats,
            prompt_lengths=prompts,
            output_lengths=(known - prompts).astype(np.int32),
        )

    def _finish(self, tokens: NDArray[np.int32]) -> None:
        record, recorder = self._record, self._shim.parts.recorder
        if recorder is None:
            return
        fingerprints = self._stats.fingerprint if self._stats is not None else None
        record.fingerprints = np.empty(0, np.uint64) if fingerprints is None else fingerprints
        record.sampled = tokens
        recorder.finish(record.step, record.fingerprints, tokens)

    def _tell_listeners(self) -> None:
        for listener in self._shim.parts.listeners:
            listener.step_done(self._record, self._findings, self._actions)
