"""Captures: the window, the tokens and the KV pages of the sequences involved, cloned while serving goes on."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from checkengine.engine_shim.adapter import EngineAdapter
from checkengine.engine_shim.arming import Armings, Match, matches
from checkengine.engine_shim.background import BackgroundWorker
from checkengine.engine_shim.capture_counts import CaptureCounts
from checkengine.engine_shim.cloning import UNBOUNDED, Budget, clone_window, outputs_of, take_capture
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.finding import Finding
from checkengine.replay.capture import Capture
from checkengine.replay.fault_limit import FaultLimit
from checkengine.replay.record import Ints, StepRecord
from checkengine.replay.recorded import RecordedWindow
from checkengine.replay.recorder import Recorder

__all__ = ["Budget", "CaptureOnFinding", "take_capture"]

logger = logging.getLogger("checkengine.capture")

REMEMBERED = 10_000
"""Incidents that are known to have a bundle."""
PAUSE_SECONDS = 10.0
"""Of an armed condition that was met while nothing could be captured: it may be met in every step."""
ENDING = (ActionKind.STOP, ActionKind.RETRY, ActionKind.QUARANTINE)
"""Actions after which a sequence has no further step, and its blocks may be refilled."""


@dataclass(slots=True)
class Trigger:
    """What is to be captured, at once or once the steps after it are over."""

    step: int
    kernel: str
    handles: tuple[int, ...]
    sequence: str
    findings: tuple[Finding, ...]
    incident: str | None
    counted_as: Finding
    budget: Budget
    armed: str | None = None
    """Identifier of the condition that was met."""
    outputs: Mapping[int, Ints] | None = None
    """By handle, as of the trigger: of sequences that end before the capture."""

    @property
    def words(self) -> str:
        return f"armed condition {self.armed}" if self.armed else f"incident {self.incident}"


class CaptureOnFinding:
    """A step listener: one capture an incident, and those of armed conditions, handed to a writer on a thread of its
    own."""

    def __init__(
        self,
        adapter: EngineAdapter,
        recorder: Recorder,
        write: Callable[[Capture], bool | None],
        *,
        incident_of: Callable[[str], str | None],
        window_steps: int,
        after_steps: int = 0,
        configuration: Mapping[str, Any] | None = None,
        waiting: int = 2,
        budget: Budget = UNBOUNDED,
        limit: FaultLimit | None = None,
        counts: CaptureCounts | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`write` puts a capture on disk and tells of it; False where it could not. Captures hold KV pages: at most
        `waiting` wait for it. `incident_of` tells the incident of a sequence: a guard that only observes is captured
        too. While `ready` is False nothing is cloned."""
        self.enabled = True
        self.counts = counts or CaptureCounts()
        self.armings = Armings()
        self._adapter = adapter
        self._recorder = recorder
        self._write = write
        self._incident_of = incident_of
        self._window_steps, self._after_steps = window_steps, after_steps
        self._configuration = dict(configuration or {})
        self._budget = budget
        self._limit = limit
        self._ready = ready
        self._captured: OrderedDict[str, None] = OrderedDict()
        self._pending: list[Trigger] = []
        self._refused: deque[Trigger] = deque()
        """Triggers whose capture the disk did not take; the writer's thread puts them here."""
        self._waiting = waiting
        self._handed, self._taken = 0, 0
        """Captures that were handed to the writer, and those that it has begun with."""
        self._worker: BackgroundWorker[tuple[Trigger, Capture]] = BackgroundWorker(
            self._put_on_disk, name="capture", waiting=waiting
        )

    @property
    def dropped(self) -> int:
        """Captures that were not taken because the writer is behind."""
        return self.counts.outcomes()["dropped"]

    @property
    def duplicates(self) -> int:
        """Captures that were not taken because the fault has enough of them."""
        return self.counts.outcomes()["duplicate"]

    def step_done(self, record: StepRecord, findings: list[Finding], actions: list[Action]) -> None:
        if self._pending:
            self._follow(record, findings, actions)
        if not self.enabled:
            return
        if self._refused:
            self._forget_refused()
        for finding in findings:
            incident = self._incident_of(finding.sequence)
            if incident is not None and incident not in self._captured:
                self._remember(incident)
                own = tuple(each for each in findings if each.sequence == finding.sequence)
                self._trigger(record, finding.sequence, own, incident, actions)
        if self.armings:
            self._look(record, findings, actions)

    def close(self, timeout: float = 30.0) -> None:
        """Capture what still waits for steps, write what waits for the disk, then end the thread; what is not written
        within `timeout` seconds is lost."""
        self.enabled = False
        for trigger in self._pending:
            self._take_between_steps(trigger)
        self._pending.clear()
        if not self._worker.close(timeout):
            self.counts.add("dropped", self._handed - self._taken)

    def _remember(self, incident: str) -> None:
        self._captured[incident] = None
        while len(self._captured) > REMEMBERED:
            self._captured.popitem(last=False)

    def _forget_refused(self) -> None:
        """The next finding of the same incident is captured again, if the disk is willing by then."""
        while self._refused:
            trigger = self._refused.popleft()
            if trigger.incident is not None:
                self._captured.pop(trigger.incident, None)
            if self._limit is not None:
                self._limit.take_back(trigger.counted_as, trigger.kernel)

    # Triggers

    def _trigger(
        self,
        record: StepRecord,
        sequence: str,
        findings: tuple[Finding, ...],
        incident: str,
        actions: Sequence[Action],
    ) -> None:
        live = self._recorder.live()
        handles = tuple(
            handle for handle in record.handles.tolist() if handle in live and live[handle].name == sequence
        )
        trigger = Trigger(record.step, record.kernel, handles, sequence, findings, incident, findings[0], self._budget)
        if handles:
            self._admit(trigger, actions)
        else:
            self._refuse(trigger, "dropped", f"step {record.step} could not be recorded")

    def _look(self, record: StepRecord, findings: Sequence[Finding], actions: Sequence[Action]) -> None:
        now = time.time()
        for match in matches(self.armings.due(now), record, findings, self._recorder.live):
            if self._admit(self._armed(record, match), actions):
                match.arming.captured.add(match.handle)
            else:
                match.arming.pauses_until = now + PAUSE_SECONDS

    def _armed(self, record: StepRecord, match: Match) -> Trigger:
        return Trigger(
            record.step,
            record.kernel,
            (match.handle,),
            match.sequence,
            match.findings,
            self._incident_of(match.sequence),
            match.counted_as(record.step),
            replace(self._budget, level=match.arming.level),
            match.arming.identifier,
        )

    def _admit(self, trigger: Trigger, actions: Sequence[Action]) -> bool:
        """Whether it is, or will be, captured. Nothing is cloned for nothing: the checks come first."""
        if not self._ready():
            self._refuse(trigger, "skipped", "the disk refused the last one")
            if trigger.incident is not None and trigger.armed is None:
                self._captured.pop(trigger.incident, None)
            return False
        if self._handed - self._taken + len(self._pending) >= self._waiting:
            self._refuse(trigger, "dropped", "the bundle writer is behind")
            return False
        if self._limit is not None and not self._limit.admit(trigger.counted_as, trigger.kernel, time.time()):
            self._refuse(trigger, "duplicate", "there are enough of this fault")
            return False
        if self._after_steps and not over(trigger, actions):
            trigger.outputs = self._outputs()
            self._pending.append(trigger)
        else:
            self._take(trigger)
        return True

    def _refuse(self, trigger: Trigger, outcome: str, why: str) -> None:
        self.counts.add(outcome)
        level = logging.WARNING if outcome == "dropped" else logging.INFO
        logger.log(level, "no capture of %s: %s", trigger.words, why)

    # Steps after the trigger

    def _outputs(self) -> dict[int, Ints]:
        """Of everybody who lives: they may be gone when the capture is taken, or run again under the same name."""
        return {handle: outputs_of(self._adapter, start.name) for handle, start in self._recorder.live().items()}

    def _follow(self, record: StepRecord, findings: Sequence[Finding], actions: Sequence[Action]) -> None:
        due: list[Trigger] = []
        waiting: list[Trigger] = []
        for trigger in self._pending:
            trigger.findings += tuple(each for each in findings if each.sequence == trigger.sequence)
            gone = set(trigger.handles) <= set(record.ended)
            ready = gone or record.step >= trigger.step + self._after_steps or over(trigger, actions)
            (due if ready else waiting).append(trigger)
        self._pending = waiting
        for trigger in due:
            self._take(trigger)

    def _take_between_steps(self, trigger: Trigger) -> None:
        """At the end. A step that runs meanwhile would write into the memory that is cloned."""
        try:
            capture = self._clone(trigger, self._window(trigger))
        except Exception:
            logger.exception("the capture of %s failed", trigger.words)
            self.counts.add("failed")
            return
        last = capture.window.records[-1]
        if self._recorder.last_step() == last.step and len(last.sampled) == int(last.samples.sum()):
            self._hand_over(trigger, capture)
        else:
            self._refuse(trigger, "dropped", "the engine was still running when it was closed")

    def _take(self, trigger: Trigger) -> None:
        window = self._window(trigger)
        if not set(trigger.handles) <= window.starts.keys():
            self._refuse(trigger, "dropped", f"step {trigger.step} could not be recorded")
            return
        try:
            capture = self._clone(trigger, window)
        except Exception:
            self.counts.add("failed")
            raise
        self._hand_over(trigger, capture)

    def _window(self, trigger: Trigger) -> RecordedWindow:
        return self._recorder.window(max(0, trigger.step - self._window_steps + 1))

    def _clone(self, trigger: Trigger, window: RecordedWindow) -> Capture:
        named = {"armed": trigger.armed} if trigger.armed else {}
        return clone_window(
            self._adapter,
            window,
            trigger.handles,
            findings=trigger.findings,
            incident=trigger.incident,
            configuration=self._configuration | named,
            budget=trigger.budget,
            outputs=trigger.outputs,
        )

    def _hand_over(self, trigger: Trigger, capture: Capture) -> None:
        if not any(record.step == trigger.step for record in capture.window.records):
            self._refuse(trigger, "dropped", f"the recorder no longer holds step {trigger.step}")
            return
        if capture.level != trigger.budget.level:
            logger.warning("capture of %s is of level %s: more is beyond kv_bytes", trigger.words, capture.level)
        self._handed += 1
        if not self._worker.put((trigger, capture)):  # `close` came in between
            self._handed -= 1
            self._refuse(trigger, "dropped", "the bundle writer is behind")

    def _put_on_disk(self, waiting: tuple[Trigger, Capture]) -> None:
        trigger, capture = waiting
        self._taken += 1
        written: bool | None = False
        try:
            written = self._write(capture)
        except Exception:
            self.counts.add("failed")
            logger.exception("the bundle of %s could not be written", trigger.words)
        if written is False:
            self._refused.append(trigger)


def over(trigger: Trigger, actions: Sequence[Action]) -> bool:
    """The suspect has no further step, or its blocks may be refilled before it has one."""
    return any(action.sequence == trigger.sequence and action.kind in ENDING for action in actions)
