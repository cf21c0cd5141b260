"""Audits of a live engine: a healthy-looking step is cloned now and then, and judged on a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping

from checkengine.engine_shim.adapter import EngineAdapter
from checkengine.engine_shim.capturing import take_capture
from checkengine.guards.action import Action
from checkengine.guards.events import Event
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.audit import Auditor, AuditSchedule, audit_event
from checkengine.replay.capture import Capture
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.record import StepRecord
from checkengine.replay.recorder import Recorder

logger = logging.getLogger("checkengine.audit")

KIND = "audit.defect"
SEVERITIES: Mapping[VerdictKind, Severity] = {
    VerdictKind.CODE_DEFECT: Severity.ERROR,
    VerdictKind.NAN_UNSAFE: Severity.WARNING,
}
"""Verdicts that convict; the others are told as events only."""


class AuditSteps:
    """A step listener. Captures stay in memory, at most `waiting` of them, and are dropped when they are judged."""

    def __init__(
        self,
        adapter: EngineAdapter,
        recorder: Recorder,
        auditor: Auditor,
        schedule: AuditSchedule,
        *,
        publish: Callable[[Event], None],
        convict: Callable[[Finding], str],
        write: Callable[[Capture], None] | None = None,
        waiting: int = 1,
    ) -> None:
        """On the audit's thread: `publish` hears of every verdict, `convict` files a finding and returns its incident,
        `write` puts a convicted capture on disk (None: it stays in memory)."""
        self.enabled = True
        self.judged = 0
        self.dropped = 0
        """Steps that were due and not audited: the judge is behind, or it failed."""
        self._adapter = adapter
        self._recorder = recorder
        self._auditor = auditor
        self._schedule = schedule
        self._publish = publish
        self._convict = convict
        self._write = write
        self._queue: queue.Queue[Capture | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._run, name="checkengine-audit", daemon=True)
        self._thread.start()

    def step_done(self, record: StepRecord, findings: list[Finding], actions: list[Action]) -> None:
        handles = self._schedule.choose(record)
        if not handles or not self.enabled or findings:
            return  # A step with a finding has a capture of its own.
        if self._queue.full():
            self.dropped += 1
            return
        capture = take_capture(self._adapter, self._recorder, handles, first_step=record.step)
        try:
            self._queue.put_nowait(capture)
        except queue.Full:  # `close` came in between
            self.dropped += 1

    def close(self, timeout: float = 60.0) -> None:
        """Judge what waits, then end the thread; what is not judged within `timeout` seconds is dropped."""
        self.enabled = False
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            logger.warning("the judge hangs: an audit is dropped")
            return
        self._thread.join(timeout)

    def _run(self) -> None:
        while (capture := self._queue.get()) is not None:
            try:
                self._tell(self._auditor.audit(capture), capture)
                self.judged += 1
            except Exception:
                self.dropped += 1
                logger.exception("the audit of step %d failed", capture.window.last_step)

    def _tell(self, verdict: Verdict, capture: Capture) -> None:
        incident = None
        if verdict.kind in SEVERITIES:
            finding = finding_of(verdict, capture)
            incident = self._convict(finding)
            if self._write is not None:
                capture.findings, capture.incident = (finding,), incident
                self._write(capture)
        self._publish(audit_event(verdict, capture, time.time(), incident))


def finding_of(verdict: Verdict, capture: Capture) -> Finding:
    evidence = {"layers": len(verdict.layers), "slots": len(verdict.slots), "replays": verdict.replays_used}
    step, severity = capture.window.last_step, SEVERITIES[verdict.kind]
    return Finding(KIND, verdict.sequence or "", severity, step, 0, "audit", evidence=evidence)
