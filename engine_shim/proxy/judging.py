"""From what guards of text found to what is done about it, by the same policy as everywhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from checkengine.engine_shim.proxy.channel import Told
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.events import ActionTaken, Event
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.policy import Policy
from checkengine.guards.text import TextFinding

logger = logging.getLogger("checkengine.proxy")
INTERVENTIONS = (ActionKind.STOP.value, ActionKind.RETRY.value)
ACT_FOR = {"logits.nonfinite": "nonfinite", "logits.uniform": "uniform"}
"""One guard of log-probabilities reads for two guards of logits, each with an action of its own."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a client may know of a finding: no evidence (design rule 13)."""

    kind: str
    incident: str
    choice: int
    action: str
    """observe, warn, stop or retry: as it was decided."""
    severity: Severity

    @property
    def is_visible(self) -> bool:
        """Somebody asked for more than observing: it is told in the body."""
        return self.action != "observe"


@dataclass(frozen=True, slots=True)
class Verdict:
    notes: Sequence[Note]
    action: ActionKind | None = None
    """STOP or RETRY, for the choice."""
    finding: TextFinding | None = None
    """Which caused it."""
    note: Note | None = None


NOTHING = Verdict(())


class Judge:
    """Of all requests. A fault in the policy costs the verdict, never the answer."""

    def __init__(
        self,
        policy: Policy,
        publish: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.policy, self._publish, self._clock = policy, publish, clock

    def begin(self, sequences: Sequence[str]) -> None:
        now = self._clock()
        for sequence in sequences:
            self.policy.begin(sequence, now)

    def forget(self, sequences: Sequence[str]) -> None:
        for sequence in sequences:
            self.policy.forget(sequence)

    def judge(self, sequence: str, choice: int, told: Sequence[Told]) -> Verdict:
        try:
            return self._judge(sequence, choice, told)
        except Exception:
            logger.exception("the policy failed; the answer goes on")
            return NOTHING

    def took(self, note: Note, sequence: str, kind: ActionKind) -> None:
        """The action was carried out."""
        self._publish(ActionTaken(Action(kind, sequence, note.kind, note.incident, 0), self._clock()))

    def _judge(self, sequence: str, choice: int, told: Sequence[Told]) -> Verdict:
        findings = [as_finding(guard, sequence, finding) for guard, finding in told]
        actions = {action.finding: action for action in self.policy.decide(findings, self._clock())}
        incident = self.policy.incident_of(sequence) or ""
        notes = [
            Note(finding.kind, incident, choice, _action_of(finding, actions), finding.severity)
            for finding in findings
            if finding.severity > Severity.INFO
        ]
        for note, (_, finding) in zip(findings_told(notes, findings), told, strict=True):
            if note is not None and note.action in INTERVENTIONS:
                return Verdict(notes, ActionKind(note.action), finding, note)
        return Verdict(notes)


def findings_told(notes: Sequence[Note], findings: Sequence[Finding]) -> Iterator[Note | None]:
    """A note or None for each finding, in their order."""
    remaining = iter(notes)
    for finding in findings:
        yield next(remaining) if finding.severity > Severity.INFO else None


def _action_of(finding: Finding, actions: Mapping[str, Action]) -> str:
    action = actions.get(finding.kind)
    return action.kind.value if action is not None else ActionKind.OBSERVE.value


def as_finding(guard: str, sequence: str, finding: TextFinding) -> Finding:
    """Evidence keeps its numbers; where it was found becomes evidence."""
    numbers = {name: value for name, value in finding.evidence.items() if isinstance(value, int | float)}
    token = int(finding.at.get("token", 0))
    name = ACT_FOR.get(finding.kind, guard)
    evidence = {**numbers, **finding.at}
    return Finding(finding.kind, sequence, finding.severity, 0, token, name, finding.version, evidence)
