"""Audits of a live engine: a healthy-looking step is cloned now and then, and judged on a thread of its own."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch

from checkengine.detectors import row_stats
from checkengine.engine_shim.adapter import EngineAdapter
from checkengine.engine_shim.background import BackgroundWorker
from checkengine.engine_shim.capturing import take_capture
from checkengine.guards.action import Action
from checkengine.guards.events import AuditCoverage, Event
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.audit import AuditSchedule, Selection, audit_event
from checkengine.replay.capture import Capture
from checkengine.replay.fault_limit import FaultLimit
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.record import StepRecord
from checkengine.replay.recorder import Recorder

logger = logging.getLogger("checkengine.audit")

CONVICTIONS: Mapping[VerdictKind, tuple[str, Severity]] = {
    VerdictKind.CODE_DEFECT: ("audit.defect", Severity.ERROR),
    VerdictKind.NAN_UNSAFE: ("audit.masked_read", Severity.WARNING),
}
"""Kind and severity of the finding for verdicts that convict; the others are told as events only. A masked read is a
kind of its own: a kernel may do so in every healthy step (vLLM's on a CPU), which must not hide a defect."""
TOLD_SECONDS = 60.0
"""Between two events that tell the coverage."""
KEPT_CONVICTIONS = 100


@dataclass(frozen=True, slots=True)
class Waiting:
    """A step that waits for the judge."""

    capture: Capture
    selection: Selection
    prints: Mapping[int, int]
    """By handle: fingerprints of the logits that were served."""
    seconds: float
    """CPU time that the capture took on the step's thread."""


class Judging(Protocol):
    """`Auditor` is one; another judges in another process."""

    def audit(self, capture: Capture, prints: Mapping[int, int]) -> Verdict: ...


class AuditSteps:
    """A step listener. Captures stay in memory, at most `waiting` of them, and are dropped when they are judged."""

    def __init__(
        self,
        adapter: EngineAdapter,
        recorder: Recorder,
        auditor: Judging,
        schedule: AuditSchedule,
        *,
        publish: Callable[[Event], None],
        convict: Callable[[Finding], str],
        write: Callable[[Capture], object] | None = None,
        waiting: int = 1,
        limit: FaultLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit`: how many bundles a kind of verdict is worth, in which time; None: three an hour.

        On the audit's thread: `publish` hears of every verdict and, once a minute, of the coverage; `convict` files
        a finding and returns its incident; `write` puts a convicted capture on disk (None: it stays in memory)."""
        self.enabled = True
        self.judged = 0
        self.dropped = 0
        """Steps that were due and not audited: the judge is behind, or it failed."""
        self.verdicts: dict[str, int] = {}
        self.convictions: deque[dict[str, Any]] = deque(maxlen=KEPT_CONVICTIONS)
        self.cpu_seconds = 0.0
        self.schedule = schedule
        self._adapter = adapter
        self._recorder = recorder
        self.auditor = auditor
        self._publish = publish
        self._convict = convict
        self._write = write
        self._limit = limit or FaultLimit(3, 3600.0)
        self._clock = clock
        self._told = clock()
        self._threads = max(1, int(adapter.environment().get("threads") or 1))
        self._logits: torch.Tensor | None = None
        self._worker = BackgroundWorker(self._judge, name="audit", waiting=waiting)

    def take_logits(self, logits: torch.Tensor | None) -> None:
        """Raw logits of the rows that sample in the step that is done, (rows, vocabulary) in CPU memory; None where
        they are not at hand. Before `step_done`."""
        self._logits = logits

    def step_done(self, record: StepRecord, findings: list[Finding], actions: list[Action]) -> None:
        logits, self._logits = self._logits, None
        selection = self.schedule.choose(record)
        if selection is None or not self.enabled or findings:
            return  # A step with a finding has a capture of its own.
        if self._worker.full:
            self.dropped += 1
            return
        before = time.thread_time()
        capture = take_capture(self._adapter, self._recorder, selection.handles, first_step=record.step)
        prints = prints_of(record, logits, selection.handles)
        if not self._worker.put(Waiting(capture, selection, prints, time.thread_time() - before)):
            self.dropped += 1

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is judged."""
        return self._worker.idle

    def status(self) -> dict[str, Any]:
        """Plain JSON: the counters, and the newest convictions; from any thread."""
        return {**self.counters(), "convictions": list(self.convictions)[::-1]}

    def counters(self) -> dict[str, Any]:
        """Coverage by stratum (seen, audited, convicted) and the audits' counts, since the start."""
        return {
            "strata": self.schedule.coverage.counts(),
            "judged": self.judged,
            "verdicts": dict(self.verdicts),
            "skipped": self.schedule.skipped,
            "dropped": self.dropped,
            "cpu_seconds": self.cpu_seconds,
        }

    def close(self, timeout: float = 60.0) -> None:
        """Judge what waits, then end the thread; what is not judged within `timeout` seconds is dropped."""
        self.enabled = False
        if not self._worker.open:
            return
        self._worker.close(timeout)
        self._tell_coverage()

    def _judge(self, waiting: Waiting) -> None:
        before = time.thread_time()
        try:
            verdict = self.auditor.audit(waiting.capture, waiting.prints)
            self._count(verdict, waiting)
            self._tell(verdict, waiting.capture)
            self.judged += 1
        except Exception:
            self.dropped += 1
            logger.exception("the audit of step %d failed", waiting.capture.window.last_step)
        finally:
            # A parallel product's other threads are not in this thread's time; they are busy no longer than it is.
            spent = (time.thread_time() - before) * self._threads + waiting.seconds
            self.cpu_seconds += spent
            self.schedule.pace.charge(spent)
        if self._clock() - self._told >= TOLD_SECONDS:
            self._tell_coverage()

    def _count(self, verdict: Verdict, waiting: Waiting) -> None:
        name = str(verdict.kind)
        self.verdicts[name] = self.verdicts.get(name, 0) + 1
        handles = waiting.selection.handles
        if verdict.kind is VerdictKind.NO_FAULT:
            self.schedule.judged(waiting.selection)
        elif verdict.kind is not VerdictKind.INCONCLUSIVE:
            # The rows beside it are not cleared. Where no sequence is named, one of the rows stands for it.
            starts = waiting.capture.window.starts
            guilty = [handle for handle in handles if starts[handle].name == verdict.sequence] or handles[:1]
            self.schedule.judged(waiting.selection.of(guilty), frozenset(guilty))

    def _tell(self, verdict: Verdict, capture: Capture) -> None:
        incident = None
        if verdict.kind in CONVICTIONS:
            finding = finding_of(verdict, capture)
            incident = self._convict(finding)
            # A kernel that reads too far does so in every step: its bundles would push all others out.
            if self._write is not None and self._limit.admit(finding, str(verdict.kind), time.time()):
                capture.findings, capture.incident = (finding,), incident
                if self._write(capture) is False:
                    self._limit.take_back(finding, str(verdict.kind))
        event = audit_event(verdict, capture, time.time(), incident)
        if incident is not None:
            self.convictions.append({**asdict(event), "replica": ""})
        self._publish(event)

    def _tell_coverage(self) -> None:
        self._told = self._clock()
        self._publish(AuditCoverage(**self.counters(), time=time.time()))


def prints_of(record: StepRecord, logits: torch.Tensor | None, handles: Sequence[int]) -> dict[int, int]:
    """By handle, of those of the rows that sample. With many rows the shim screens logits and records none."""
    sampling = record.sampling_handles
    rows = np.flatnonzero(np.isin(sampling, handles))
    if logits is None or len(logits) != len(sampling) or not len(rows):
        return {}
    prints = row_stats(logits[torch.from_numpy(rows)], "full").fingerprint
    return {} if prints is None else dict(zip(sampling[rows].tolist(), prints.tolist(), strict=True))


def finding_of(verdict: Verdict, capture: Capture) -> Finding:
    evidence = {"layers": len(verdict.layers), "slots": len(verdict.slots), "replays": verdict.replays_used}
    step, (kind, severity) = capture.window.last_step, CONVICTIONS[verdict.kind]
    return Finding(kind, verdict.sequence or "", severity, step, 0, "audit", evidence=evidence)
