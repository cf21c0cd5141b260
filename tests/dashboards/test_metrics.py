"""Metrics count what happened, under names and labels that stay few."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from checkengine.dashboards.metrics import OTHER, LabelCap, LiveNumbers, Metrics
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.events import (
    ActionTaken,
    AuditJudged,
    BrakePulled,
    BundleWritten,
    FindingRaised,
    GuardDisabled,
    SequenceEnded,
    StepMeasured,
)
from checkengine.guards.finding import Finding, Severity


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry(), "1.2.3")


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"checkengine_{name}", labels)


def raised(kind: str = "logits.nonfinite", incident: str = "i1", primary: bool = True) -> FindingRaised:
    finding = Finding(kind, "request-1", Severity.ERROR, 5, 0, "nonfinite")
    return FindingRaised(finding, incident, 100.0, primary)


def test_ten_thousand_findings_of_one_incident_are_one_incident(metrics: Metrics) -> None:
    for _ in range(10_000):
        metrics.handle(raised())
    metrics.handle(raised(incident="i2"))
    labels = {"kind": "logits.nonfinite", "guard": "nonfinite", "primary": "true"}
    assert value(metrics, "findings_total", **labels) == 10_001
    assert value(metrics, "incidents_total", kind="logits.nonfinite") == 2


def test_evidence_on_a_known_cause_is_a_finding_and_no_incident(metrics: Metrics) -> None:
    metrics.handle(raised("repetition.loop", primary=False))
    labels = {"kind": "repetition.loop", "guard": "nonfinite", "primary": "false"}
    assert value(metrics, "findings_total", **labels) == 1
    assert value(metrics, "incidents_total", kind="repetition.loop") is None


def test_actions_brakes_guards_bundles_and_audits_are_counted(metrics: Metrics) -> None:
    metrics.handle(ActionTaken(Action(ActionKind.STOP, "r", "logits.nonfinite", "i1", 0), 1.0))
    metrics.handle(GuardDisabled("language", "raised", 1.0))
    metrics.handle(BrakePulled("repetition", 7, 300.0, 1.0))
    metrics.handle(BundleWritten("b", "i1", "/somewhere", 1.0))
    metrics.handle(AuditJudged(None, "r", 5, "code defect", 1.0))
    assert value(metrics, "actions_total", action="stop", kind="logits.nonfinite") == 1
    assert value(metrics, "guards_disabled_total", guard="language") == 1
    assert value(metrics, "brakes_pulled_total", guard="repetition") == 1
    assert value(metrics, "bundles_written_total") == 1
    assert value(metrics, "audits_total", verdict="code defect") == 1


def test_a_sequence_that_ended_counts_its_tokens_and_its_first_wait(metrics: Metrics) -> None:
    metrics.handle(SequenceEnded("r", "stop", 30, 12, 0.3, 2.0, 1.0))
    metrics.handle(SequenceEnded("s", "abort", 30, 0, 0.0, 2.0, 1.0))
    assert value(metrics, "sequences_total", finish_reason="stop") == 1
    assert value(metrics, "prompt_tokens_total") == 60
    assert value(metrics, "output_tokens_total") == 12
    assert value(metrics, "time_to_first_token_seconds_count") == 1
    assert value(metrics, "time_to_first_token_seconds_sum") == 0.3


def test_steps_count_time_tokens_and_what_guards_cost(metrics: Metrics) -> None:
    metrics.handle(StepMeasured(1, 4, 36, 0.02, 0.0001, 1.0))
    assert value(metrics, "steps_total") == 1
    assert value(metrics, "step_tokens_total") == 36
    assert value(metrics, "guard_cpu_seconds_total") == 0.0001
    assert value(metrics, "step_seconds_bucket", le="0.025") == 1
    assert value(metrics, "step_seconds_bucket", le="0.01") == 0


def test_only_the_wait_between_tokens_is_an_inter_token_time(metrics: Metrics) -> None:
    metrics.produced("r", 1, 3.0, True)
    metrics.produced("r", 4, 0.02, False)
    assert value(metrics, "inter_token_seconds_count") == 1
    assert value(metrics, "inter_token_seconds_sum") == 0.02


def test_the_objectives_of_the_lecture_are_edges_of_buckets(metrics: Metrics) -> None:
    """TTFT < 500 ms and TBT < 30 ms can be read exactly, without interpolation."""
    assert value(metrics, "time_to_first_token_seconds_bucket", le="0.5") == 0
    assert value(metrics, "inter_token_seconds_bucket", le="0.03") == 0


def test_labels_stay_few_whatever_the_events_say(metrics: Metrics) -> None:
    for i in range(500):
        metrics.handle(raised(kind=f"drift.series{i}", incident=f"i{i}"))
        metrics.handle(SequenceEnded("r", f"reason{i}", 1, 1, 0.1, 0.2, 1.0))
    lines = metrics.exposition()[0].decode().splitlines()
    assert sum(line.startswith("checkengine_findings_total{") for line in lines) == 65
    assert sum(line.startswith("checkengine_sequences_total{") for line in lines) == 65
    assert value(metrics, "sequences_total", finish_reason=OTHER) == 436


def test_a_label_that_passed_once_passes_again() -> None:
    cap = LabelCap(1)
    assert [cap("a"), cap("b"), cap("a")] == ["a", OTHER, "a"]


def test_incidents_that_are_remembered_are_bounded(metrics: Metrics) -> None:
    for i in range(5000):
        metrics.handle(raised(incident=f"i{i}"))
    assert len(metrics._incident_ids) == 4096


def test_an_event_that_nobody_counts_is_no_error(metrics: Metrics) -> None:
    metrics.handle(object())  # type: ignore[arg-type]


NUMBERS = SimpleNamespace(
    waiting=1, running=2, blocks=64, free_blocks=10, quarantined_blocks=3, prefix_hit_tokens=320, preemptions=4
)


def live(metrics: Metrics, **parts: Any) -> None:
    metrics.registry.register(LiveNumbers(**parts))


def test_an_engines_numbers_are_read_when_prometheus_asks(metrics: Metrics) -> None:
    live(
        metrics,
        engine=lambda: NUMBERS,
        recorder_dropped=lambda: 5,
        listeners_dropped=lambda: {"catalog": 2},
        guards_active=lambda: {"language": False},
    )
    assert value(metrics, "sequences_running") == 2
    assert value(metrics, "kv_blocks_free") == 10
    assert value(metrics, "prefix_hit_tokens_total") == 320
    assert value(metrics, "preemptions_total") == 4
    assert value(metrics, "recorder_dropped_total") == 5
    assert value(metrics, "events_dropped_total", listener="catalog") == 2
    assert value(metrics, "guard_active", guard="language") == 0


def test_numbers_that_cannot_be_read_leave_the_rest_of_the_scrape_whole(metrics: Metrics) -> None:
    def broken() -> Any:
        raise RuntimeError("planted")

    live(metrics, engine=broken, recorder_dropped=lambda: 5)
    assert b"checkengine_recorder_dropped_total 5.0" in metrics.exposition()[0]
    assert value(metrics, "sequences_running") is None
    assert (value(metrics, "scrape_failures_total") or 0) >= 1


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=\xff",
        "application/openmetrics-text; version=one",
        "text/plain; version=1.0.0; escaping=nonsense",
        "application/openmetrics-text; version=1..0; escaping",
        ";;;,=,,",
    ],
)
def test_an_accept_header_that_makes_no_sense_gets_figures_all_the_same(metrics: Metrics, accept: str) -> None:
    body, content_type = metrics.exposition(accept)
    assert b"checkengine_" in body
    assert content_type.startswith(("text/plain", "application/openmetrics-text"))


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text; version=1.0.0"])
def test_the_exposition_answers_in_the_format_that_is_asked_for(metrics: Metrics, accept: str) -> None:
    live(metrics, engine=lambda: NUMBERS)
    body, content_type = metrics.exposition(accept)
    assert ("openmetrics" in content_type) == ("openmetrics" in accept)
    assert body.decode().endswith("# EOF\n") == ("openmetrics" in accept)


def test_names_follow_prometheus_own_rules(metrics: Metrics) -> None:
    live(metrics, engine=lambda: NUMBERS, recorder_dropped=lambda: 0)
    for family in text_string_to_metric_families(metrics.exposition()[0].decode()):
        assert re.fullmatch("checkengine_[a-z_]+", family.name), family.name
        assert family.documentation.endswith("."), family.name
        if family.type == "histogram":
            assert family.name.endswith("_seconds")


def test_the_documentation_names_every_metric_and_no_other(metrics: Metrics) -> None:
    live(
        metrics,
        engine=lambda: NUMBERS,
        recorder_dropped=lambda: 0,
        listeners_dropped=dict,
        guards_active=dict,
    )
    families = text_string_to_metric_families(metrics.exposition("")[0].decode())
    there = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    documented = set(
        re.findall(r"`(checkengine_[a-z_]+)`", (Path(__file__).parents[2] / "docs/metrics.md").read_text())
    )
    assert documented == {name for name in there if not name.endswith("_created")}
