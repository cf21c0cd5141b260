"""Policy: from what guards found to what is done about it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from checkengine.guards.action import Action, ActionKind
from checkengine.guards.brake import Brake
from checkengine.guards.events import BrakePulled, Event, FindingRaised
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.incident import IncidentBook
from checkengine.guards.settings import BrakeSettings, GuardAction, GuardsSettings

logger = logging.getLogger("checkengine.guards")

NO_CAUSE = 1 << 30
INTERVENTIONS = (ActionKind.STOP, ActionKind.RETRY)
STRAY_CASES = 4096
"""Sequences kept beyond the live ones: findings may come after a sequence's end (audits)."""


@dataclass(slots=True)
class _Case:
    """What is known of one sequence that has a finding."""

    rank: int = NO_CAUSE
    incident: str = ""
    retries: int = 0
    retrying: bool = False
    """A retry was ordered: the engine may end the sequence and begin it anew under its name."""
    stopped: bool = False
    braked_for: set[str] = field(default_factory=set)
    """Guards that the brake has counted this sequence for: a retry and a later stop are one."""
    would_stop: set[str] = field(default_factory=set)


class Policy:
    """Thread-safe: the thread that runs the steps decides on guards' findings, an audit's thread on its own.

    It publishes FindingRaised and BrakePulled. ActionTaken is for whoever applies the action, and knows whether it
    could. `quarantined_fraction` tells which share of the KV blocks is in quarantine already. Times are Unix seconds.
    """

    def __init__(
        self,
        settings: GuardsSettings,
        brake: BrakeSettings,
        book: IncidentBook,
        *,
        publish: Callable[[Event], None] = lambda event: None,
        replica: str = "",
        kernel: str = "",
        quarantined_fraction: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.book = book
        # Reentrant: a listener on the publisher's thread may ask the policy something.
        self._lock = threading.RLock()
        self._settings = settings
        self._brake_settings = brake
        self._brake = Brake(brake)
        self._publish = publish
        self._replica = replica
        self._kernel = kernel
        self._quarantined_fraction = quarantined_fraction
        self._overrides: dict[str, GuardAction] = {}
        self._live: set[str] = set()
        self._cases: dict[str, _Case] = {}
        self._would_have_stopped: Counter[str] = Counter()
        self._told_full = False

    def begin(self, sequence: str, now: float) -> None:
        """A sequence starts: it counts as traffic for the brake."""
        with self._lock:
            self._live.add(sequence)
            self._brake.begin(now)

    def forget(self, sequence: str) -> None:
        """The sequence is over. What is known of a retried one is kept for its second run, which has its name."""
        with self._lock:
            self._live.discard(sequence)
            case = self._cases.get(sequence)
            if case is not None and case.retrying:
                case.retrying = False
            else:
                self._cases.pop(sequence, None)

    def decide(self, findings: Iterable[Finding], now: float) -> list[Action]:
        """What is to be done, in this order; empty where all is only observed. The deepest cause of a sequence
        speaks first, and a sequence is stopped or retried once in a step. INFO never leads to an action, WARNING at
        most to a warning: only an ERROR stops or retries."""
        with self._lock:
            return self._decide(findings, now)

    def file(self, finding: Finding, now: float) -> str:
        """Put a finding on record without acting on it (its sequence may be over: audits), and return its incident."""
        with self._lock:
            case = self._case(finding.sequence)
            self._file(finding, case, now)
            self.book.note_action(case.incident, ActionKind.OBSERVE.value)
            return case.incident

    def action_of(self, guard: str) -> GuardAction:
        """What the guard's findings lead to now."""
        configured = self._overrides.get(guard) or self._settings.of(guard).action
        return "observe" if configured in ("stop", "retry") and self._brake.pulled(guard) else configured

    def set_action(self, guard: str, action: GuardAction) -> None:
        """Until the process ends; the configuration stays as it is."""
        self._overrides[guard] = action
        logger.warning("guard %s: action is now %s", guard, action)

    def pull(self, guard: str) -> None:
        """Brake a guard by hand: it only observes until it is released."""
        with self._lock:
            self._brake.pull(guard)
        logger.warning("guard %s: brake pulled by hand", guard)

    def release(self, guard: str) -> None:
        """Let a braked guard act again."""
        with self._lock:
            self._brake.release(guard)
        logger.warning("guard %s: brake released", guard)

    def incident_of(self, sequence: str) -> str | None:
        """The incident of a live sequence's deepest known cause; None where nothing was found on it."""
        case = self._cases.get(sequence)
        return case.incident or None if case is not None else None

    def braked(self, guard: str) -> bool:
        return self._brake.pulled(guard)

    def would_have_stopped(self) -> Mapping[str, int]:
        """By guard: sequences that it would have stopped, had it been allowed to."""
        with self._lock:
            return dict(self._would_have_stopped)

    def _decide(self, findings: Iterable[Finding], now: float) -> list[Action]:
        actions: list[Action] = []
        settled: set[str] = set()
        for finding in sorted(findings, key=lambda finding: finding.rank):
            case = self._case(finding.sequence)
            self._file(finding, case, now)
            if finding.severity > Severity.INFO and not case.stopped and finding.sequence not in settled:
                taken = self._act(finding, case, now)
                actions += taken
                settled.update(action.sequence for action in taken if action.kind in INTERVENTIONS)
        return actions

    def _case(self, sequence: str) -> _Case:
        if len(self._cases) > len(self._live) + STRAY_CASES:
            self._cases = {name: case for name, case in self._cases.items() if name in self._live}
        return self._cases.setdefault(sequence, _Case())

    def _file(self, finding: Finding, case: _Case, now: float) -> None:
        """Into an incident: of its own where it is the deepest cause known of the sequence, else as evidence."""
        primary = finding.rank <= case.rank
        if primary:
            new = finding.rank < case.rank
            case.incident = self.book.record(finding, now, replica=self._replica, kernel=self._kernel, new_sequence=new)
            case.rank = finding.rank
        else:
            self.book.note_evidence(case.incident)
        self._publish(FindingRaised(finding, case.incident, now, primary))

    def _act(self, finding: Finding, case: _Case, now: float) -> list[Action]:
        wanted = self.action_of(finding.guard)
        if wanted in ("stop", "retry") and finding.severity < Severity.ERROR:
            return [self._action(ActionKind.WARN, finding, case)]
        if wanted in ("stop", "retry") and not self._admit(finding.guard, case, now):
            wanted = "observe"
        if wanted == "stop" or (wanted == "retry" and case.retries >= self._settings.maximum_retries):
            case.stopped = True
            return self._intervene(ActionKind.STOP, finding, case)
        if wanted == "retry":
            case.retries += 1
            case.retrying = True
            return self._intervene(ActionKind.RETRY, finding, case)
        self._count_missed(finding.guard, case)
        if wanted == "warn":
            return [self._action(ActionKind.WARN, finding, case)]
        self.book.note_action(case.incident, ActionKind.OBSERVE.value)
        return []

    def _intervene(self, kind: ActionKind, finding: Finding, case: _Case) -> list[Action]:
        """Quarantine first: stopping frees the blocks (design rule 7)."""
        actions = [self._action(kind, finding, case)]
        if self._settings.of(finding.guard).quarantine:
            first = ActionKind.QUARANTINE if self._has_room() else ActionKind.WARN
            actions.insert(0, self._action(first, finding, case))
        return actions

    def _has_room(self) -> bool:
        room = self._quarantined_fraction() < self._brake_settings.maximum_quarantined_fraction
        if not room and not self._told_full:
            logger.warning("quarantine is full: blocks of stopped sequences are freed without it")
        self._told_full = not room
        return room

    def _action(self, kind: ActionKind, finding: Finding, case: _Case) -> Action:
        self.book.note_action(case.incident, kind.value)
        return Action(kind, finding.sequence, finding.kind, case.incident, finding.token)

    def _admit(self, guard: str, case: _Case, now: float) -> bool:
        if guard in case.braked_for:
            return True
        if self._brake.admit(guard, now, len(self._live)):
            case.braked_for.add(guard)
            return True
        self._tell_brake(guard, now)
        return False

    def _tell_brake(self, guard: str, now: float) -> None:
        stopped, window = self._brake.stopped(guard, now), self._brake_settings.window_seconds
        logger.warning("guard %s stopped %d sequences in %.0f s: it only observes from now on", guard, stopped, window)
        self._publish(BrakePulled(guard, stopped, window, now))

    def _count_missed(self, guard: str, case: _Case) -> None:
        if guard not in case.would_stop:
            case.would_stop.add(guard)
            self._would_have_stopped[guard] += 1
