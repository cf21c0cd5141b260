"""Metrics count what happened, under names and labels that stay few."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from checkengine.dashboards.collector import Totals
from checkengine.dashboards.limits import PhysicalLimit
from checkengine.dashboards.metrics import OTHER, LabelCap, LiveNumbers, Metrics
from checkengine.dashboards.proxy_metrics import ProxyMetrics
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
from checkengine.guards.finding import CAUSE_ORDER, Finding, Severity


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
    labels = {"kind": "logits.nonfinite", "guard": "nonfinite", "severity": "error", "primary": "true"}
    assert value(metrics, "findings_total", **labels) == 10_001
    assert value(metrics, "incidents_total", kind="logits.nonfinite") == 2


def test_evidence_on_a_known_cause_is_a_finding_and_no_incident(metrics: Metrics) -> None:
    metrics.handle(raised("repetition.loop", primary=False))
    labels = {"kind": "repetition.loop", "guard": "nonfinite", "severity": "error", "primary": "false"}
    assert value(metrics, "findings_total", **labels) == 1
    assert value(metrics, "incidents_total", kind="repetition.loop") == 0


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
    assert value(metrics, "time_to_first_token_seconds_count", prefix="cold") == 1
    assert value(metrics, "time_to_first_token_seconds_sum", prefix="cold") == 0.3


def test_steps_count_time_tokens_and_what_guards_cost(metrics: Metrics) -> None:
    metrics.handle(StepMeasured(1, 4, 36, 0.02, 0.0001, 1.0))
    assert value(metrics, "steps_total") == 1
    assert value(metrics, "step_tokens_total") == 36
    assert value(metrics, "guard_cpu_seconds_total") == 0.0001
    assert value(metrics, "step_seconds_bucket", le="0.025") == 1
    assert value(metrics, "step_seconds_bucket", le="0.01") == 0


def test_a_generation_is_an_incident_where_a_finding_of_severity_error_was_on_it(metrics: Metrics) -> None:
    metrics.handle(raised())
    metrics.handle(raised(incident="i2"))
    for sequence in ("request-1", "request-2", "request-1"):
        metrics.handle(SequenceEnded(sequence, "stop", 1, 1, 0.1, 0.2, 1.0))
    assert value(metrics, "generations_total", outcome="incident") == 1
    assert value(metrics, "generations_total", outcome="clean") == 2


def test_a_stopped_sequence_saves_what_it_could_still_have_asked_for(metrics: Metrics) -> None:
    metrics.handle(ActionTaken(Action(ActionKind.STOP, "r", "repetition.loop", "i1", 0), 1.0))
    for sequence in ("r", "s"):
        metrics.handle(SequenceEnded(sequence, "stop", 1, 30, 0.1, 0.2, 1.0, 0, 100))
    assert value(metrics, "tokens_saved_total") == 70


def test_the_first_wait_is_split_by_whether_the_prefix_was_cached(metrics: Metrics) -> None:
    metrics.handle(SequenceEnded("r", "stop", 30, 12, 0.3, 2.0, 1.0, 16))
    metrics.handle(SequenceEnded("s", "stop", 30, 12, 0.5, 2.0, 1.0, 0))
    assert value(metrics, "time_to_first_token_seconds_sum", prefix="warm") == 0.3
    assert value(metrics, "time_to_first_token_seconds_sum", prefix="cold") == 0.5


def test_an_incident_with_two_captures_is_captured_once(metrics: Metrics) -> None:
    for bundle in ("b1", "b2"):
        metrics.handle(BundleWritten(bundle, "i1", "/somewhere", 1.0))
    assert (value(metrics, "incidents_captured_total"), value(metrics, "bundles_written_total")) == (1, 2)


def test_a_step_tells_how_much_of_the_devices_bandwidth_or_speed_it_used() -> None:
    metrics = Metrics(CollectorRegistry(), "1", limit=PhysicalLimit(1000, 10, 500, 1e4, 1e6))
    metrics.handle(StepMeasured(1, 4, 4, 0.2, 0.0, 1.0, context_tokens=100))
    metrics.handle(StepMeasured(2, 4, 64, 0.5, 0.0, 1.0, context_tokens=164, prefill_tokens=61))
    metrics.handle(StepMeasured(3, 4, 64, 0.5, 0.0, 1.0))
    assert (value(metrics, "decode_bytes_total"), value(metrics, "decode_seconds_total")) == (2000, 0.2)
    assert (value(metrics, "prefill_flops_total"), value(metrics, "prefill_seconds_total")) == (64_000, 0.5)
    assert value(metrics, "device_bandwidth_bytes_per_second") == 1e4


def test_draft_tokens_count_as_verified_and_accepted(metrics: Metrics) -> None:
    metrics.handle(StepMeasured(1, 4, 36, 0.02, 0.0, 1.0, drafted_tokens=12, accepted_tokens=9))
    assert value(metrics, "speculative_tokens_total", state="drafted") == 12
    assert value(metrics, "speculative_tokens_total", state="accepted") == 9


def test_a_finding_and_a_first_token_lead_to_the_trace_in_openmetrics() -> None:
    metrics = Metrics(CollectorRegistry(), "1", trace_of=lambda sequence: "ab" * 16 if sequence == "request-1" else "")
    metrics.handle(raised())
    metrics.handle(SequenceEnded("request-1", "stop", 30, 12, 0.3, 2.0, 1.0))
    metrics.handle(SequenceEnded("untraced", "stop", 30, 12, 0.02, 2.0, 1.0))
    lines = metrics.exposition("application/openmetrics-text; version=1.0.0")[0].decode().splitlines()
    told = [line.split("{")[0] for line in lines if "# {" in line]
    assert told == ["checkengine_findings_total", "checkengine_time_to_first_token_seconds_bucket"]
    assert all('trace_id="' + "ab" * 16 in line for line in lines if "# {" in line)


def test_every_kind_of_incident_has_a_zero_before_its_first(metrics: Metrics) -> None:
    assert {value(metrics, "incidents_total", kind=kind) for kind in CAUSE_ORDER} == {0}


def test_only_the_wait_between_tokens_is_an_inter_token_time(metrics: Metrics) -> None:
    metrics.produced("r", 1, 3.0, True)
    metrics.produced("r", 4, 0.02, False)
    assert value(metrics, "inter_token_seconds_count") == 1
    assert value(metrics, "inter_token_seconds_sum") == 0.02


def test_the_objectives_of_the_lecture_are_edges_of_buckets(metrics: Metrics) -> None:
    """TTFT < 500 ms and TBT < 30 ms can be read exactly, without interpolation."""
    assert value(metrics, "time_to_first_token_seconds_bucket", le="0.5", prefix="warm") == 0
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


def test_what_guards_brakes_spool_and_drift_say_is_read_when_prometheus_asks(metrics: Metrics) -> None:
    live(
        metrics,
        guard_seconds=lambda: {"salad": 1.5},
        guards_braked=lambda: {"salad": True},
        would_have_stopped=lambda: {"salad": 3},
        incidents_open=lambda: 2,
        spool_dropped=lambda: 4,
        collector=lambda: Totals(5.0, 6, 7, 8),
        canaries=lambda: {"failed": 9},
        upstreams=lambda: {"drained": 10},
        notifications=lambda: {("webhook", "delivered"): 11},
        drift=lambda: {f"series{n}": (1.5, 9.0) for n in range(500)},
    )
    assert value(metrics, "guard_seconds_total", guard="salad") == 1.5
    assert value(metrics, "guard_braked", guard="salad") == 1
    assert value(metrics, "would_have_stopped_total", guard="salad") == 3
    assert (value(metrics, "incidents_open"), value(metrics, "spool_dropped_total")) == (2, 4)
    assert value(metrics, "collector_last_round_timestamp_seconds") == 5
    collected = [value(metrics, f"collector_{name}_total") for name in ("records", "rejected", "failures")]
    assert collected == [6, 7, 8]
    assert value(metrics, "canaries_total", outcome="failed") == 9
    assert value(metrics, "upstreams", standing="drained") == 10
    assert value(metrics, "notifications_total", channel="webhook", outcome="delivered") == 11
    assert value(metrics, "drift_log_evidence", series="series0") == 1.5
    assert value(metrics, "drift_log_threshold", series="series63") == 9.0
    assert value(metrics, "drift_log_threshold", series="series64") is None


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
            assert family.name.endswith(("_seconds", "_per_request", "_ratio"))


def test_no_metric_stands_in_the_exposition_twice(metrics: Metrics) -> None:
    live(metrics, engine=lambda: NUMBERS, collector=Totals, notifications=lambda: {("webhook", "failed"): 1})
    metrics.handle(raised())
    samples = [line.rpartition(" ")[0] for line in metrics.exposition()[0].decode().splitlines() if line[0] != "#"]
    assert len(samples) == len(set(samples))


def test_in_multiprocess_mode_one_process_answers_for_all(tmp_path: Path) -> None:
    program = """
import os, sys
from prometheus_client import CollectorRegistry
from checkengine.dashboards.collector import Totals
from checkengine.dashboards.limits import PhysicalLimit
from checkengine.dashboards.metrics import LiveNumbers, Metrics
from checkengine.guards.events import SequenceEnded
metrics = Metrics(CollectorRegistry(), "1")
metrics.add_live(LiveNumbers(incidents_open=lambda: 7))
if os.fork() == 0:
    metrics = Metrics(CollectorRegistry(), "1")
    metrics.handle(SequenceEnded("a", "stop", 5, 1, 0.1, 0.2, 1.0))
    os._exit(0)
os.wait()
metrics.handle(SequenceEnded("b", "stop", 6, 1, 0.1, 0.2, 1.0))
sys.stdout.write(metrics.exposition()[0].decode())
"""
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PATH": ""}
    text = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    lines = text.stdout.splitlines()
    assert "checkengine_prompt_tokens_total 11.0" in lines
    assert 'checkengine_generations_total{outcome="clean"} 2.0' in lines
    assert "checkengine_incidents_open 7.0" in lines


def test_the_documentation_names_every_metric_and_no_other(metrics: Metrics) -> None:
    live(
        metrics,
        engine=lambda: NUMBERS,
        recorder_dropped=lambda: 0,
        listeners_dropped=dict,
        guards_active=dict,
        captures=dict,
        capture_levels=dict,
        reproducers=dict,
        guard_seconds=dict,
        guards_braked=dict,
        would_have_stopped=dict,
        incidents_open=lambda: 0,
        spool_dropped=lambda: 0,
        drift=dict,
        collector=Totals,
        canaries=dict,
        upstreams=dict,
        notifications=dict,
    )
    ProxyMetrics(metrics.registry, lambda: 0)
    families = text_string_to_metric_families(metrics.exposition("")[0].decode())
    there = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    documented = set(
        re.findall(r"`(checkengine_[a-z_]+)`", (Path(__file__).parents[2] / "docs/metrics.md").read_text())
    )
    assert documented == {name for name in there if not name.endswith("_created")}
