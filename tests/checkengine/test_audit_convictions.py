"""An audit's finding comes from another thread, and often after its sequence is over."""

from __future__ import annotations

import threading

from checkengine.auditing import Conviction
from checkengine.guards import IncidentBook, Policy
from checkengine.guards.events import Event
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.settings import BrakeSettings, GuardsSettings


def policy(heard: list[Event]) -> Policy:
    return Policy(GuardsSettings(), BrakeSettings(), IncidentBook(), publish=heard.append)


def found(kind: str, sequence: str) -> Finding:
    return Finding(kind, sequence, Severity.ERROR, 5, 2, "audit")


def test_a_conviction_opens_an_incident_and_stops_nobody() -> None:
    heard: list[Event] = []
    subject = policy(heard)
    identifier = Conviction(subject)(found("audit.defect", "over"))
    incident = subject.book.get(identifier)
    assert incident is not None
    assert (incident.kind, incident.actions) == ("audit.defect", {"observe": 1})
    assert len(heard) == 1


def test_a_conviction_of_a_sequence_with_a_deeper_cause_is_evidence_in_that_incident() -> None:
    subject = policy([])
    subject.begin("a", 0.0)
    subject.decide([found("logits.nonfinite", "a")], 1.0)
    (nan,) = subject.book.incidents(1.0)
    assert Conviction(subject)(found("audit.defect", "a")) == nan.id
    (nan,) = subject.book.incidents(1.0)
    assert nan.evidence == 1


def test_convictions_from_several_threads_are_each_told_their_own_incident() -> None:
    subject = policy([])
    convict, told, barrier = Conviction(subject), {}, threading.Barrier(8)

    def run(number: int) -> None:
        barrier.wait(10)
        for step in range(50):
            told[number, step] = convict(found(f"drift.{number}", f"{number}/{step}"))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    kinds = {incident.id: incident.kind for incident in subject.book.incidents(0.0)}
    assert len(told) == 400
    assert all(kinds[identifier] == f"drift.{number}" for (number, _), identifier in told.items())
