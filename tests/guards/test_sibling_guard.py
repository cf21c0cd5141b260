"""One replica, device, driver or kernel against the others."""

from __future__ import annotations

from checkengine.guards.finding import Severity
from checkengine.guards.settings import SiblingSettings
from checkengine.guards.siblings import SiblingGuard
from checkengine.guards.text import TextFinding

SETTINGS = SiblingSettings(dimensions=("replica", "kernel"))


def labels(number: int) -> dict[str, str]:
    return {"replica": f"r{number}", "kernel": "paged" if number % 2 else "reference", "region": "north"}


def hour(guard: SiblingGuard, start: float, bad: int | None, kind: str = "text.salad") -> list[TextFinding]:
    """A request of each of eight replicas a second, in sixties; the bad one has a finding every ten minutes."""
    told = []
    for minute in range(60):
        t = start + 60.0 * minute
        for number in range(8):
            told += guard.request(t, labels(number), 60)
        if bad is not None and minute % 10 == 0:
            told += guard.finding(t, kind, labels(bad))
    return told


def test_the_replica_with_the_findings_is_named_and_its_kernel_is_not() -> None:
    guard = SiblingGuard(SETTINGS)
    told = [finding for each in range(4) for finding in hour(guard, 3600.0 * each, 5)]
    first = told[0]
    assert (first.kind, first.id, first.severity) == ("drift.replica", "r5", Severity.WARNING)
    assert first.evidence["of"] == "text.salad"
    assert first.evidence["siblings_per_million"] == 0.0


def test_an_exact_kind_accuses_at_the_first_event_and_once() -> None:
    guard = SiblingGuard(SETTINGS)
    told = guard.finding(5.0, "logits.nonfinite", labels(3))
    assert [(finding.kind, finding.id, finding.severity) for finding in told] == [
        ("drift.replica", "r3", Severity.ERROR),
        ("drift.kernel", "paged", Severity.ERROR),
    ]
    assert told[0].at == {"t": 5.0}
    assert guard.finding(6.0, "logits.nonfinite", labels(3)) == []
    assert [finding.id for finding in guard.finding(7.0, "logits.nonfinite", labels(1))] == ["r1"]


def test_findings_that_all_replicas_have_accuse_nobody() -> None:
    guard, told = SiblingGuard(SETTINGS), []
    for each in range(12):
        told += hour(guard, 3600.0 * each, None)
        for number in range(8):
            told += guard.finding(3600.0 * each + 3590.0, "text.salad", labels(number))
    assert told == []


def test_a_readmitted_replica_is_told_again() -> None:
    guard = SiblingGuard(SETTINGS)
    guard.finding(1.0, "token.impossible", labels(2))
    guard.readmit("replica", "r2")
    assert [finding.kind for finding in guard.finding(2.0, "token.impossible", labels(2))] == ["drift.replica"]


def test_labels_that_are_missing_or_unknown_are_passed_over() -> None:
    guard = SiblingGuard(SETTINGS)
    assert guard.request(0.0, {}) == []
    assert guard.finding(0.0, "text.salad", {"region": "north"}) == []
    assert guard.finding(0.0, "logits.nonfinite", {"replica": "r1"})[0].id == "r1"


def test_kinds_beyond_the_settings_are_not_compared() -> None:
    guard = SiblingGuard(SiblingSettings(dimensions=("replica",), kinds=1))
    hour(guard, 0.0, 5, "text.salad")
    told = [finding for each in range(1, 6) for finding in hour(guard, 3600.0 * each, 6, "language.switch")]
    assert told == []
