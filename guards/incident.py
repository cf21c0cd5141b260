"""Incidents: what people are told. One cause is one incident, however often it strikes (design rule 2)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from checkengine.guards.finding import Finding
from checkengine.guards.identifiers import IncidentIdentifiers

SAMPLE = 64
"""Names and ids kept of each list; counts are exact."""
CLOSED_KEPT = 1000
IDLE_SECONDS = 600.0


@dataclass(slots=True)
class Incident:
    """Findings of one kind on one replica with one kernel configuration. Times are Unix seconds."""

    id: str
    kind: str
    replica: str
    kernel: str
    first_seen: float
    last_seen: float
    findings: int = 0
    sequences: int = 0
    """Sequences on which it is the deepest cause known."""
    evidence: int = 0
    """Findings of lesser rank on those sequences."""
    sequence_sample: list[str] = field(default_factory=list)
    actions: dict[str, int] = field(default_factory=dict)
    """How many of each kind were taken."""
    blast_radius: list[str] = field(default_factory=list)
    """Other sequences that share KV blocks or a prefix with those (a sample)."""
    bundles: list[str] = field(default_factory=list)
    open: bool = True


class IncidentBook:
    """Thread-safe. An incident closes after `idle_seconds` without a finding; the next one opens a new incident."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle = idle_seconds
        self._identifiers = IncidentIdentifiers()
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str, str], Incident] = {}
        self._all: OrderedDict[str, Incident] = OrderedDict()

    def record(
        self, finding: Finding, now: float, *, replica: str = "", kernel: str = "", new_sequence: bool = True
    ) -> str:
        """Count a finding in the open incident of its cause, or open one; returns the incident's id.

        `new_sequence` is False where this sequence was counted in the incident before.
        """
        with self._lock:
            incident = self._current((finding.kind, replica, kernel), now)
            incident.last_seen = max(incident.last_seen, now)
            incident.findings += 1
            if new_sequence:
                incident.sequences += 1
                keep(incident.sequence_sample, (finding.sequence,))
            return incident.id

    def note_evidence(self, incident: str) -> None:
        with self._lock:
            if found := self._all.get(incident):
                found.evidence += 1

    def note_action(self, incident: str, action: str) -> None:
        with self._lock:
            if found := self._all.get(incident):
                found.actions[action] = found.actions.get(action, 0) + 1

    def note_blast_radius(self, incident: str, sequences: Iterable[str]) -> None:
        with self._lock:
            if found := self._all.get(incident):
                keep(found.blast_radius, sequences)

    def note_bundle(self, incident: str, bundle: str) -> None:
        with self._lock:
            if found := self._all.get(incident):
                keep(found.bundles, (bundle,))

    def get(self, incident: str) -> Incident | None:
        """A copy as of now."""
        with self._lock:
            found = self._all.get(incident)
            return copied(found) if found else None

    def incidents(self, now: float) -> list[Incident]:
        """Copies of all that are remembered, oldest first."""
        with self._lock:
            self._close_idle(now)
            return [copied(incident) for incident in self._all.values()]

    def _current(self, cause: tuple[str, str, str], now: float) -> Incident:
        incident = self._open.get(cause)
        if incident is not None and now - incident.last_seen <= self._idle:
            return incident
        self._close_idle(now)
        incident = Incident(self._identifiers.new(now), *cause, first_seen=now, last_seen=now)
        self._open[cause] = self._all[incident.id] = incident
        self._drop_oldest()
        return incident

    def _close_idle(self, now: float) -> None:
        for cause, incident in list(self._open.items()):
            if now - incident.last_seen > self._idle:
                incident.open = False
                del self._open[cause]

    def _drop_oldest(self) -> None:
        excess = len(self._all) - len(self._open) - CLOSED_KEPT
        for identifier in [i.id for i in self._all.values() if not i.open][: max(excess, 0)]:
            del self._all[identifier]


def keep(sample: list[str], names: Iterable[str]) -> None:
    for name in names:
        if len(sample) < SAMPLE and name not in sample:
            sample.append(name)


def copied(incident: Incident) -> Incident:
    return replace(
        incident,
        sequence_sample=list(incident.sequence_sample),
        actions=dict(incident.actions),
        blast_radius=list(incident.blast_radius),
        bundles=list(incident.bundles),
    )
