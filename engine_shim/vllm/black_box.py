"""The black box inside a vLLM worker: records every step, and captures when the scheduler says so.

A `WorkerListener` of the observing worker. Captures are cloned between two steps, from memory as the last recorded step
left it: what steps in flight wrote since is taken back by the undo ring.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.auditing import AuditSteps
from checkengine.engine_shim.background import BackgroundWorker
from checkengine.engine_shim.capture_counts import CaptureCounts
from checkengine.engine_shim.cloning import Budget, take_capture
from checkengine.engine_shim.spool import as_number
from checkengine.engine_shim.vllm.auditing import AuditMaker, ProcessAuditor
from checkengine.engine_shim.vllm.carried import StepReading, orders_of
from checkengine.engine_shim.vllm.cpu_cache import packed_cache
from checkengine.engine_shim.vllm.environment import environment_of
from checkengine.engine_shim.vllm.kv_cache import KVMemoryError
from checkengine.engine_shim.vllm.memory_adapter import KnownBudget, VllmMemoryAdapter
from checkengine.engine_shim.vllm.recorder import StepRecorder
from checkengine.guards.finding import Finding
from checkengine.replay.capture import Capture
from checkengine.replay.fault_limit import FaultLimit
from checkengine.replay.levels import Level
from checkengine.replay.record import StepRecord
from checkengine.replay.settings import CaptureSettings, RecorderSettings

logger = logging.getLogger("checkengine.vllm")

WAITING = 2
"""Captures that wait for the disk; each holds KV pages."""


@dataclass(frozen=True, slots=True)
class CaptureOrder:
    """From the scheduler, in `ToWorkers.capture`."""

    incident: str | None
    findings: tuple[Finding, ...]
    """A request id is a finding's `sequence`; all that are named are captured together."""
    window_steps: int | None = None
    """None: as `[capture] window_steps` says."""
    counted_as: Finding | None = None
    """Of an armed condition: which sequence and step met it, where no guard found anything."""
    armed: str = ""
    level: Level | None = None
    """None: as `[capture] level` says."""

    def __post_init__(self) -> None:
        """vLLM sends it to other processes in a message of its own, and dies where that cannot be packed."""
        object.__setattr__(self, "findings", tuple(sendable(each) for each in self.findings))
        if self.counted_as is not None:
            object.__setattr__(self, "counted_as", sendable(self.counted_as))

    @property
    def trigger(self) -> tuple[Finding, ...]:
        return self.findings or ((self.counted_as,) if self.counted_as is not None else ())


def sendable(finding: Finding) -> Finding:
    """Of built-in types; evidence that is no number is left out."""
    told = {str(name): as_number(value) for name, value in finding.evidence.items()}
    evidence = {name: value for name, value in told.items() if type(value) in (bool, int, float)}
    return replace(finding, sequence=str(finding.sequence), evidence=evidence)


class BlackBox:
    """`write` puts a capture on disk (BundleWriter.write); it runs on a thread of its own."""

    def __init__(
        self,
        write: Callable[[Capture], bool | None],
        recording: RecorderSettings | None = None,
        capturing: CaptureSettings | None = None,
        configuration: Mapping[str, Any] | None = None,
        counts: CaptureCounts | None = None,
        audits: AuditMaker | None = None,
    ) -> None:
        """`audits` makes what audits healthy-looking steps; None audits none. `configuration` joins the
        environment: settings of ours that a replay runs with again (`{"guards": …}`)."""
        self._write = write
        self._recording = recording or RecorderSettings()
        self._capturing = capturing or CaptureSettings()
        self._configuration = dict(configuration or {})
        self.counts = counts or CaptureCounts()
        self._limit = FaultLimit(self._capturing.per_fault, 3600 * self._capturing.per_fault_hours)
        self.recorder: StepRecorder | None = None
        self._adapter: VllmMemoryAdapter | None = None
        self._make_audits = audits
        self.audits: AuditSteps | None = None
        self._to_audit: deque[StepRecord] = deque(maxlen=WAITING)
        self._message = -1
        """The last message's number; -1 where they have none."""
        self._steps: dict[int, int] = {}
        """By the message's number, which the scheduler counts by: the recorded step."""
        self._writer: BackgroundWorker[Capture] = BackgroundWorker(
            self._put_on_disk, name="vllm-capture", waiting=WAITING
        )

    def ready(self, worker: Any) -> None:
        """Learn the layout of KV memory, compile, read the weights' digest: before requests come."""
        if self.recorder is None:
            self._begin(worker)
            self._warm_up()

    def between_steps(self, worker: Any, scheduler_output: Any) -> None:
        if self.recorder is None:
            self._begin(worker)
        assert self.recorder is not None
        self.recorder.ran()  # Where the step before failed, or had no logits.
        orders = orders_of(scheduler_output)
        if -1 < self._message < orders.step - 1:
            self.recorder.missed()
        self._message = orders.step
        for order in orders.capture:
            if isinstance(order, CaptureOrder):
                self.capture(order)
        while self._to_audit:
            self._audit(self._to_audit.popleft())
        self.recorder.refilling(orders.refill)

    def filling(self, worker: Any, blocks: Sequence[int]) -> None:
        assert self.recorder is not None
        self.recorder.refilling(blocks)

    def before_step(self, worker: Any, scheduler_output: Any) -> None:
        assert self.recorder is not None
        self.recorder.before_step(scheduler_output)
        self._steps[orders_of(scheduler_output).step] = self.recorder.ledger.last_step
        if len(self._steps) > self._recording.steps:
            del self._steps[next(iter(self._steps))]

    def raw_logits(self, worker: Any, logits: torch.Tensor) -> None:
        """The forward pass is over."""
        if self.recorder is not None:
            self.recorder.ran()

    def after_step(self, worker: Any, output: Any, reading: StepReading | None) -> None:
        if self.recorder is not None and len(output.req_ids):
            record = self.outcome(output, None if reading is None else fingerprints_of(reading, output.req_ids))
            if record is not None and self.audits is not None:
                self._to_audit.append(record)

    def outcome(self, output: Any, fingerprints: NDArray[np.uint64] | None) -> StepRecord | None:
        assert self.recorder is not None
        return self.recorder.after_step(output.req_ids, output.sampled_token_ids, fingerprints)

    def capture(self, order: CaptureOrder) -> bool:
        """On the worker's thread, between steps. Whether a capture was handed to the writer."""
        assert self.recorder is not None
        assert self._adapter is not None
        if not self._capturing.enabled or self._writer.full or self.recorder.off:
            self.counts.add("dropped")
            return False
        if not self._limit.admit(order.trigger[0], "vllm", time.time()):
            self.counts.add("duplicate")
            return False
        try:
            with self.recorder.memory, self.recorder.books:
                taken = self._take(order)
        except Exception:
            self.counts.add("failed")
            logger.exception("the capture of incident %s failed; serving goes on", order.incident)
            return False
        return self._writer.put(taken)

    @property
    def idle(self) -> bool:
        """Nothing waits for the disk."""
        return self._writer.idle

    def close(self, timeout: float = 30.0) -> bool:
        """Write what waits; False where it took too long."""
        if self.audits is not None:
            self.audits.close(0)
            if isinstance(self.audits.auditor, ProcessAuditor):
                self.audits.auditor.close()
        return self._writer.close(timeout)

    def _begin(self, worker: Any) -> None:
        config = worker.vllm_config
        try:
            cache = packed_cache(worker.model_runner)
        except KVMemoryError as error:
            logger.warning("steps are recorded without KV pages, so they cannot be replayed: %s", error)
            cache = None
        self.recorder = StepRecorder(int(config.cache_config.block_size), cache, self._recording)
        self._adapter = VllmMemoryAdapter(self.recorder, environment_of(config))
        if self._make_audits is not None and cache is not None:
            self.audits = self._make_audits(self._adapter, self.recorder.recorder)

    def _warm_up(self) -> None:
        """The undo ring's memory is allocated, and the compiled copies are there."""
        assert self.recorder is not None
        if self.recorder.undo is not None:
            self.recorder.undo.warm_up()

    def _audit(self, record: StepRecord) -> None:
        """Between two steps, as captures are taken."""
        if self.recorder is None or self.audits is None or self._adapter is None or self.recorder.off:
            return
        self._adapter.first_step = record.step
        with self.recorder.memory, self.recorder.books:
            self.audits.step_done(record, [], [])

    def _take(self, order: CaptureOrder) -> Capture:
        assert self.recorder is not None
        assert self._adapter is not None
        findings = tuple(replace(each, step=self._steps.get(each.step, each.step)) for each in order.findings)
        names = {finding.sequence for finding in order.trigger}
        last = max(0, self.recorder.last_recorded)
        step = order.trigger[0].step
        first = max(
            0, min(last, self._steps.get(step, step)) - (order.window_steps or self._capturing.window_steps) + 1
        )
        window = self.recorder.recorder.window(first)
        handles = [handle for handle, start in window.starts.items() if start.name in names]
        self._adapter.first_step = first
        return take_capture(
            self._adapter,
            self.recorder.recorder,
            handles,
            first_step=first,
            findings=findings,
            incident=order.incident,
            configuration=self._configuration | ({"armed": order.armed} if order.armed else {}),
            budget=self._budget(order.level or self._capturing.level),
        )

    def _budget(self, level: Level) -> Budget:
        assert self.recorder is not None
        cache, most = self.recorder.cache, self._capturing.kv_bytes
        return Budget("L0") if cache is None else KnownBudget(level, most, block_bytes=cache.block_bytes)

    def _put_on_disk(self, capture: Capture) -> None:
        if self._write(capture) is False:
            self.counts.add("failed")


def fingerprints_of(reading: StepReading, rows: Sequence[str]) -> NDArray[np.uint64] | None:
    """Aligned with the worker's rows; None where they were not measured or rows verify drafts."""
    prints = reading.stats.fingerprint
    if prints is None or tuple(rows) != reading.requests or len(prints) != len(rows):
        return None
    return prints
