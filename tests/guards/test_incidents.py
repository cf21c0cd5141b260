"""Incidents: one cause is one incident."""

from __future__ import annotations

from checkengine.guards.identifiers import IncidentIdentifiers
from checkengine.guards.incident import CLOSED_KEPT, SAMPLE, IncidentBook

NOW = 1_800_000_000.0


def test_findings_of_one_kind_on_one_replica_and_kernel_are_one_incident(finding_of):
    book = IncidentBook()
    ids = {book.record(finding_of("logits.nonfinite", str(i)), NOW + i, replica="r1", kernel="paged") for i in range(9)}
    (incident,) = book.incidents(NOW + 9)
    assert ids == {incident.id}
    assert (incident.first_seen, incident.last_seen) == (NOW, NOW + 8)


def test_another_kind_replica_or_kernel_is_another_incident(finding_of):
    book = IncidentBook()
    nan, loop = finding_of("logits.nonfinite"), finding_of("repetition.loop")
    made = [
        book.record(nan, NOW, replica="r1", kernel="paged"),
        book.record(loop, NOW, replica="r1", kernel="paged"),
        book.record(nan, NOW, replica="r2", kernel="paged"),
        book.record(nan, NOW, replica="r1", kernel="reference"),
    ]
    assert len(set(made)) == 4


def test_an_incident_closes_after_ten_idle_minutes_and_the_next_finding_opens_a_new_one(finding_of):
    book = IncidentBook()
    first = book.record(finding_of("logits.nonfinite"), NOW)
    assert book.record(finding_of("logits.nonfinite"), NOW + 600) == first
    second = book.record(finding_of("logits.nonfinite"), NOW + 1201)
    assert second != first
    assert [incident.open for incident in book.incidents(NOW + 1201)] == [False, True]


def test_samples_are_bounded_and_counts_are_exact(finding_of):
    book = IncidentBook()
    for index in range(500):
        incident = book.record(finding_of("logits.nonfinite", f"s{index}"), NOW)
    book.note_blast_radius(incident, (f"n{index}" for index in range(500)))
    found = book.get(incident)
    assert (found.findings, found.sequences) == (500, 500)
    assert (len(found.sequence_sample), len(found.blast_radius)) == (SAMPLE, SAMPLE)


def test_actions_evidence_and_bundles_are_kept_with_the_incident(finding_of):
    book = IncidentBook()
    incident = book.record(finding_of("logits.nonfinite"), NOW)
    book.note_action(incident, "stop")
    book.note_action(incident, "stop")
    book.note_evidence(incident)
    book.note_bundle(incident, "bundle-1")
    found = book.get(incident)
    assert (found.actions, found.evidence, found.bundles) == ({"stop": 2}, 1, ["bundle-1"])


def test_what_is_handed_out_does_not_change_the_book(finding_of):
    book = IncidentBook()
    incident = book.record(finding_of("logits.nonfinite"), NOW)
    book.get(incident).sequence_sample.append("intruder")
    assert book.get(incident).sequence_sample == ["a"]


def test_the_book_forgets_the_oldest_closed_incidents_first(finding_of):
    book = IncidentBook(idle_seconds=1.0)
    ids = [book.record(finding_of("logits.nonfinite"), NOW + 10 * index) for index in range(CLOSED_KEPT + 50)]
    assert book.get(ids[0]) is None
    assert book.get(ids[-1]) is not None
    assert len(book.incidents(NOW)) <= CLOSED_KEPT + 1


def test_identifiers_are_short_unique_and_sort_by_time():
    identifiers = IncidentIdentifiers()
    made = [identifiers.new(NOW + index // 100) for index in range(1000)]
    assert made == sorted(set(made))
    assert {len(identifier) for identifier in made} == {18}
    assert made[0].startswith("inc-")


def test_identifiers_stay_in_order_when_the_clock_steps_back():
    identifiers = IncidentIdentifiers()
    made = [identifiers.new(now) for now in (NOW, NOW - 3600, NOW - 7200, NOW)]
    assert made == sorted(set(made))
