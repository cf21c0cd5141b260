"""Policy: which findings lead to which actions, and when the brake says no."""

from __future__ import annotations

import pytest

from checkengine.guards.action import ActionKind
from checkengine.guards.events import BrakePulled, FindingRaised
from checkengine.guards.finding import Severity
from checkengine.guards.incident import IncidentBook
from checkengine.guards.policy import Policy
from checkengine.guards.settings import BrakeSettings, GuardsSettings

NOW = 1_800_000_000.0
UNBRAKED = BrakeSettings(minimum_stopped=10**9)


def policy(brake: BrakeSettings = UNBRAKED, events: list | None = None, quarantined: float = 0.0, **guards) -> Policy:
    return Policy(
        GuardsSettings.model_validate(guards),
        brake,
        IncidentBook(),
        publish=(events if events is not None else []).append,
        quarantined_fraction=lambda: quarantined,
    )


def kinds(actions) -> list[str]:
    return [action.kind.value for action in actions]


def test_nonfinite_logits_stop_the_sequence_after_its_blocks_are_in_quarantine(finding_of):
    actions = policy().decide([finding_of("logits.nonfinite", token=11)], NOW)
    assert kinds(actions) == ["quarantine", "stop"]
    assert {action.keep_tokens for action in actions} == {11}
    assert len({action.incident for action in actions}) == 1


def test_an_impossible_id_stops_without_quarantine(finding_of):
    assert kinds(policy().decide([finding_of("token.impossible", guard="impossible_token")], NOW)) == ["stop"]


@pytest.mark.parametrize("guard", ["ignored_stop", "repetition", "tool_calls", "language", "somebody_elses"])
def test_every_other_guard_only_observes_by_default(finding_of, guard):
    assert policy().decide([finding_of("repetition.loop", guard=guard)], NOW) == []


def test_observing_guards_count_the_sequences_that_they_would_have_stopped(finding_of):
    subject = policy(language={"action": "warn"})
    for _ in range(2):
        subject.decide([finding_of("repetition.loop", "a", guard="repetition")], NOW)
    subject.decide([finding_of("repetition.loop", "b", guard="repetition")], NOW)
    subject.decide([finding_of("language.switch", "c", guard="language")], NOW)
    assert subject.would_have_stopped() == {"repetition": 2, "language": 1}


def test_warn_leaves_the_sequence_running(finding_of):
    subject = policy(language={"action": "warn"})
    assert kinds(subject.decide([finding_of("language.switch", guard="language")], NOW)) == ["warn"]


def test_an_information_leads_to_no_action(finding_of):
    assert policy().decide([finding_of("logits.nonfinite", severity=Severity.INFO)], NOW) == []


def test_the_deepest_cause_makes_the_incident_and_lesser_ones_are_evidence(finding_of):
    events: list = []
    subject = policy(repetition={"action": "stop"}, events=events)
    loop, nan = finding_of("repetition.loop", guard="repetition"), finding_of("logits.nonfinite")
    actions = subject.decide([loop, nan], NOW)
    assert [action.finding for action in actions] == ["logits.nonfinite"] * 2
    assert [(event.finding.kind, event.primary) for event in events] == [
        ("logits.nonfinite", True),
        ("repetition.loop", False),
    ]
    assert len({event.incident for event in events}) == 1
    (incident,) = subject.book.incidents(NOW)
    assert (incident.kind, incident.findings, incident.evidence) == ("logits.nonfinite", 1, 1)


def test_a_lesser_finding_steps_later_is_still_evidence(finding_of):
    subject = policy()
    subject.decide([finding_of("logits.nonfinite")], NOW)
    assert subject.decide([finding_of("text.salad", guard="language")], NOW + 60) == []
    assert [incident.kind for incident in subject.book.incidents(NOW + 60)] == ["logits.nonfinite"]


def test_a_deeper_cause_that_shows_later_is_an_incident_of_its_own(finding_of):
    subject = policy()
    subject.decide([finding_of("text.salad", guard="language")], NOW)
    assert kinds(subject.decide([finding_of("logits.nonfinite")], NOW + 1)) == ["quarantine", "stop"]
    assert len(subject.book.incidents(NOW + 1)) == 2


def test_a_cause_that_is_only_observed_does_not_shield_the_loop_that_follows_it(finding_of):
    subject = policy(tool_calls={"action": "stop"})
    assert subject.decide([finding_of("stop.ignored", guard="ignored_stop")], NOW) == []
    (action,) = subject.decide([finding_of("tool_call.runaway", guard="tool_calls")], NOW + 1)
    assert action.kind is ActionKind.STOP
    (incident,) = subject.book.incidents(NOW + 1)
    assert (incident.kind, action.incident) == ("stop.ignored", incident.id)


def test_a_stopped_sequence_is_not_stopped_twice(finding_of):
    subject = policy()
    subject.decide([finding_of("logits.nonfinite")], NOW)
    assert subject.decide([finding_of("logits.nonfinite")], NOW) == []


def test_a_sequence_is_retried_as_often_as_allowed_and_then_stopped(finding_of):
    subject = policy(nonfinite={"action": "retry", "quarantine": False}, maximum_retries=2)
    taken = [kinds(subject.decide([finding_of("logits.nonfinite")], NOW + second)) for second in range(4)]
    assert taken == [["retry"], ["retry"], ["stop"], []]
    (incident,) = subject.book.incidents(NOW + 4)
    assert (incident.sequences, incident.findings) == (1, 4)


def test_a_retry_is_remembered_where_the_engine_begins_the_sequence_anew(finding_of):
    subject = policy(nonfinite={"action": "retry", "quarantine": False})
    taken = []
    for second in range(2):
        subject.begin("a", NOW + second)
        taken.append(kinds(subject.decide([finding_of("logits.nonfinite")], NOW + second)))
        subject.forget("a")
    assert taken == [["retry"], ["stop"]]


def test_a_sequence_that_ended_after_its_stop_is_forgotten(finding_of):
    subject = policy(nonfinite={"quarantine": False})
    for _ in range(2):
        subject.begin("a", NOW)
        assert kinds(subject.decide([finding_of("logits.nonfinite")], NOW)) == ["stop"]
        subject.forget("a")


def test_two_findings_of_one_step_make_one_retry(finding_of):
    subject = policy(nonfinite={"action": "retry", "quarantine": False}, repetition={"action": "retry"})
    findings = [finding_of("logits.nonfinite"), finding_of("repetition.loop", guard="repetition")]
    assert kinds(subject.decide(findings, NOW)) == ["retry"]


def stops(subject: Policy, finding_of, count: int, now: float = NOW, prefix: str = "s") -> int:
    decided = [subject.decide([finding_of("logits.nonfinite", f"{prefix}{i}")], now) for i in range(count)]
    return sum("stop" in kinds(actions) for actions in decided)


def test_the_brake_lets_a_guard_stop_five_sequences_of_little_traffic(finding_of):
    events: list = []
    subject = policy(BrakeSettings(), events)
    assert stops(subject, finding_of, 20) == 5
    (pulled,) = [event for event in events if isinstance(event, BrakePulled)]
    assert (pulled.guard, pulled.stopped, pulled.window_seconds) == ("nonfinite", 5, 300.0)
    assert subject.action_of("nonfinite") == "observe"
    assert subject.would_have_stopped() == {"nonfinite": 15}


def test_the_brake_lets_a_guard_stop_one_per_cent_of_much_traffic(finding_of):
    subject = policy(BrakeSettings())
    for index in range(2000):
        subject.begin(f"s{index}", NOW)
    assert stops(subject, finding_of, 100) == 20


def test_the_brake_counts_sequences_that_began_before_its_window_and_still_run(finding_of):
    subject = policy(BrakeSettings())
    for index in range(1000):
        subject.begin(f"s{index}", NOW)
    assert stops(subject, finding_of, 100, now=NOW + 1000) == 10


def test_stops_older_than_the_window_are_forgotten_by_the_brake(finding_of):
    subject = policy(BrakeSettings())
    assert stops(subject, finding_of, 5) == 5
    assert stops(subject, finding_of, 5, now=NOW + 301, prefix="t") == 5


def test_a_brake_holds_until_it_is_released(finding_of):
    subject = policy(BrakeSettings())
    stops(subject, finding_of, 6)
    assert stops(subject, finding_of, 3, now=NOW + 10_000, prefix="t") == 0
    subject.release("nonfinite")
    assert stops(subject, finding_of, 3, now=NOW + 10_000, prefix="u") == 3


def test_one_guards_brake_leaves_the_others_acting(finding_of):
    subject = policy(BrakeSettings())
    stops(subject, finding_of, 10)
    assert kinds(subject.decide([finding_of("token.impossible", "z", guard="impossible_token")], NOW)) == ["stop"]


def test_retries_of_one_sequence_count_once_for_the_brake(finding_of):
    subject = policy(BrakeSettings(minimum_stopped=1), nonfinite={"action": "retry", "quarantine": False})
    assert [kinds(subject.decide([finding_of("logits.nonfinite")], NOW)) for _ in range(2)] == [["retry"], ["stop"]]


def test_a_full_quarantine_warns_and_the_sequence_is_stopped_all_the_same(finding_of, caplog):
    subject = policy(quarantined=0.02)
    assert kinds(subject.decide([finding_of("logits.nonfinite")], NOW)) == ["warn", "stop"]
    subject.decide([finding_of("logits.nonfinite", "b")], NOW)
    assert caplog.text.count("quarantine is full") == 1


def test_an_action_is_changed_at_run_time(finding_of):
    subject = policy()
    subject.set_action("repetition", "stop")
    assert kinds(subject.decide([finding_of("repetition.loop", guard="repetition")], NOW)) == ["stop"]
    subject.set_action("nonfinite", "observe")
    assert subject.decide([finding_of("logits.nonfinite", "b")], NOW) == []


def test_ten_thousand_nans_of_one_cause_are_one_incident(finding_of):
    events: list = []
    subject = policy(events=events)
    for index in range(10_000):
        subject.begin(f"s{index}", NOW)
        subject.decide([finding_of("logits.nonfinite", f"s{index}")], NOW + index * 0.01)
        subject.forget(f"s{index}")
    (incident,) = subject.book.incidents(NOW + 100)
    assert (incident.findings, incident.sequences, incident.actions["stop"]) == (10_000, 10_000, 10_000)
    assert len(incident.sequence_sample) == 64
    assert {event.incident for event in events if isinstance(event, FindingRaised)} == {incident.id}


def test_findings_on_sequences_that_are_over_do_not_pile_up(finding_of):
    subject = policy()
    for index in range(20_000):
        subject.decide([finding_of("kv.integrity", f"s{index}", guard="audit")], NOW)
    assert len(subject._cases) < 5000
