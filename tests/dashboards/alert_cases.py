"""For every alert: series under which it keeps quiet, waits, fires and ends, as promtool's unit tests take them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkengine.dashboards.rules.groups import alerts
from checkengine.dashboards.rules.rule import Alert, Links

Labels = Mapping[str, str]
ANY_JOB = {"job": "engine"}


@dataclass(frozen=True, slots=True)
class Case:
    """`states` are times in minutes, and the labels (but for severity) of the alerts that fire then."""

    alert: str
    series: Mapping[str, str]
    states: Mapping[int, Sequence[Labels]]
    note: str = ""
    interval: str = field(default="1m")


def windows(*pairs: tuple[str, str]) -> list[Labels]:
    return [{**ANY_JOB, "long_window": long, "short_window": short} for long, short in pairs]


QUICK, SLOW, DAY, DAYS = ("1h", "5m"), ("6h", "30m"), ("1d", "2h"), ("3d", "6h")
CLEAN = 'checkengine_generations_total{job="engine",outcome="clean"}'
FAULTY = 'checkengine_generations_total{job="engine",outcome="incident"}'


def latency(name: str, edge: str, more: str) -> tuple[str, str]:
    return (
        f'checkengine_{name}_bucket{{job="engine",le="{edge}"{more}}}',
        f'checkengine_{name}_count{{job="engine"{more}}}',
    )


FIRST_GOOD, FIRST_ALL = latency("time_to_first_token_seconds", "0.5", ',prefix="cold"')
NEXT_GOOD, NEXT_ALL = latency("inter_token_seconds", "0.03", "")

BURNS = (
    Case("CheckengineCleanGenerationBurn", {FAULTY: "0+3x120 360+0x300", CLEAN: "0+97x420"},
         {0: [], 1: [], 30: windows(QUICK, SLOW), 120: windows(QUICK, SLOW, DAY), 135: windows(SLOW, DAY),
          420: windows(DAYS)}, "3% are bad for two hours"),
    Case("CheckengineCleanGenerationBurn", {FAULTY: "0+0x59 2+0x60", CLEAN: "0+1x120"}, {60: [], 65: [], 119: []},
         "2 of 60 in a quiet hour page nobody"),
    Case("CheckengineCleanGenerationBurn", {FAULTY: "0+5x120", CLEAN: "0+9995x120"}, {60: [], 119: []},
         "0.05% are bad: half of the budget"),
    Case("CheckengineFirstTokenBurn", {FIRST_GOOD: "0+50x200", FIRST_ALL: "0+100x200"},
         {1: [], 50: windows(QUICK, SLOW), 190: windows(QUICK, SLOW, DAY, DAYS)}, "half of the first tokens are slow"),
    Case("CheckengineFirstTokenBurn", {FIRST_GOOD: "0+1000x60", FIRST_ALL: "0+1000x60"}, {60: []}, "all are quick"),
    Case("CheckengineInterTokenBurn", {NEXT_GOOD: "0+500x200", NEXT_ALL: "0+1000x200"},
         {1: [], 50: windows(QUICK, SLOW), 190: windows(QUICK, SLOW, DAY, DAYS)}, "half of the tokens are slow"),
    Case("CheckengineInterTokenBurn", {NEXT_GOOD: "0+1000x60", NEXT_ALL: "0+1000x60"}, {60: []}, "all are quick"),
)  # fmt: skip


def counter(name: str, labels: str, fired: Labels, window: int, note: str = "") -> Case:
    """Nothing for half an hour, one event, nothing again."""
    series = f'checkengine_{name}{{job="engine"{labels}}}'
    return Case("", {series: "0x30 1x200"}, {29: [], 32: [fired], 31 + window + 1: []}, note)


def named(alert: str, case: Case) -> Case:
    return Case(alert, case.series, case.states, case.note)


KIND = {**ANY_JOB, "kind": "logits.nonfinite"}
FAULTS = (
    named("CheckengineExactFault", counter("incidents_total", ',kind="logits.nonfinite"', KIND, 15)),
    Case("CheckengineExactFault", {'checkengine_incidents_total{job="engine",kind="repetition.loop"}': "0x30 1x60"},
         {32: []}, "a matter of taste"),
    Case("CheckengineExactFault", {'checkengine_incidents_total{job="engine",kind="logitsXnonfinite"}': "0x30 1x60"},
         {32: []}, "a dot is a dot"),
    Case("CheckengineIncidentBurst", {'checkengine_incidents_total{job="engine",kind="text.salad"}': "0x30 9x60"},
         {29: [], 32: [ANY_JOB], 45: []}),
    Case("CheckengineIncidentBurst", {'checkengine_incidents_total{job="engine",kind="text.salad"}': "0x30 3x60"},
         {32: []}, "three are no burst"),
    named("CheckengineReplicaAccused",
          counter("incidents_total", ',kind="drift.replica"', {**ANY_JOB, "kind": "drift.replica"}, 30)),
    Case("CheckengineReplicaAccused", {'checkengine_incidents_total{job="engine",kind="drift.length"}': "0x30 1x60"},
         {32: []}, "a series is no sibling"),
    Case("CheckengineDrift", {'checkengine_incidents_total{job="engine",kind="drift.length"}': "_x30 1x200"},
         {29: [], 32: [{**ANY_JOB, "kind": "drift.length", "statistical": "true"}], 95: []},
         "a series that has no zero before its first event"),
    Case("CheckengineDrift", {'checkengine_incidents_total{job="engine",kind="drift.replica"}': "0x30 1x60"},
         {32: []}, "a sibling is no series"),
    named("CheckengineCanaryFailing", counter("canaries_total", ',outcome="failed"', ANY_JOB, 10)),
)  # fmt: skip

GUARD = {**ANY_JOB, "guard": "salad"}
WATCHER = (
    Case("CheckengineAbsent", {'checkengine_build_info{job="engine",version="1",python="3"}': "1x30 _x30"},
         {29: [], 38: [], 50: [{}]}),
    Case("CheckengineGuardDisabled", {'checkengine_guard_active{job="engine",guard="salad"}': "1x10 0x10 1x10"},
         {9: [], 14: [], 18: [GUARD], 25: []}),
    Case("CheckengineBrakePulled", {'checkengine_guard_braked{job="engine",guard="salad"}': "0x10 1x10 0x10"},
         {9: [], 12: [GUARD], 25: []}),
    named("CheckengineCaptureFailing",
          counter("captures_total", ',outcome="failed"', {**ANY_JOB, "outcome": "failed"}, 15)),
    Case("CheckengineCaptureFailing", {'checkengine_captures_total{job="engine",outcome="duplicate"}': "0x30 9x60"},
         {32: []}, "enough captures of one fault are no failure"),
    named("CheckengineRecordsLost", counter("spool_dropped_total", "", ANY_JOB, 15)),
    named("CheckengineRecordsLost", counter("events_dropped_total", ',listener="spool"', ANY_JOB, 15)),
    named("CheckengineRecordsLost", counter("recorder_dropped_total", "", ANY_JOB, 15)),
    Case("CheckengineCatalogBehind",
         {'checkengine_collector_last_round_timestamp_seconds{job="engine"}': "0+60x10 600x10 1200+60x20"},
         {9: [], 13: [], 16: [ANY_JOB], 25: []}),
    Case("CheckengineNumbersMissing", {'checkengine_scrape_failures_total{job="engine"}': "0x10 0+1x30 30x30"},
         {9: [], 15: [], 30: [ANY_JOB], 60: []}),
    Case("CheckengineQuarantineFilling",
         {'checkengine_kv_blocks{job="engine"}': "100x60",
          'checkengine_kv_blocks_quarantined{job="engine"}': "1x10 5x20 0x30"},
         {9: [], 13: [], 20: [ANY_JOB], 35: []}),
    Case("CheckengineNotificationsLost",
         {'checkengine_notifications_total{job="engine",channel="webhook",outcome="failed"}': "0x10 0+1x20 20x40"},
         {9: [], 13: [], 25: [{**ANY_JOB, "channel": "webhook"}], 60: []}),
)  # fmt: skip

CASES = (*BURNS, *FAULTS, *WATCHER)


def tests_file(rules: str, links: Links, cases: Sequence[Case], names: Sequence[str]) -> dict[str, Any]:
    """promtool's test file; `names` are the alerts of the rule file."""
    found = [as_test(case, links) for case in cases]
    return {"rule_files": [rules], "evaluation_interval": "1m", "tests": [*found, nothing_is_there(links, names)]}


def as_test(case: Case, links: Links) -> dict[str, Any]:
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    checks = [
        {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": expected(case.alert, fired, links)}
        for minute, fired in case.states.items()
    ]
    name = f"{case.alert} {case.note}"
    return {"interval": case.interval, "name": name, "input_series": series, "alert_rule_test": checks}


def nothing_is_there(links: Links, names: Sequence[str]) -> dict[str, Any]:
    """Missing series are no fault of any kind but of being missing."""
    checks = [
        {
            "eval_time": "12m",
            "alertname": name,
            "exp_alerts": expected(name, [{}] if name == "CheckengineAbsent" else [], links),
        }
        for name in names
    ]
    return {"interval": "1m", "name": "no series at all", "input_series": [], "alert_rule_test": checks}


def expected(name: str, fired: Sequence[Labels], links: Links) -> list[dict[str, Any]]:
    found = []
    for labels in fired:
        alert = alert_with(name, labels)
        words = {key: filled(text, labels) for key, text in links.annotations(alert).items()}
        found.append({"exp_labels": {**labels, "severity": alert.severity}, "exp_annotations": words})
    return found


def alert_with(name: str, labels: Labels) -> Alert:
    fits = [alert for alert in alerts() if alert.name == name and alert.labels.items() <= labels.items()]
    assert len(fits) == 1, (name, labels)
    return fits[0]


def filled(text: str, labels: Labels) -> str:
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels.get(found[1], ""), text)
