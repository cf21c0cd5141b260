"""A real Prometheus scrapes a real run: no panel is empty, no rule names a metric that is not there, and an alert goes
through a real Alertmanager to whoever listens."""

from __future__ import annotations

import ipaddress
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from monitoring import Prometheus, Received, Scraped, alertmanager, prometheus
from observed_run import SECRET, ObservedEngine, ObservedProxy

from checkengine.dashboards.grafana.boards import DASHBOARDS, files
from checkengine.dashboards.rules.groups import GROUPS
from checkengine.dashboards.rules.rule import Group, Links, Recording, as_yaml
from checkengine.dashboards.webhook_format import secret_bytes, verify

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]
NAME = re.compile(r"checkengine[a-z_]*(?::[a-z0-9_]+)*")
PANELS = [(board.title, query) for board in DASHBOARDS for query in board.queries()]


@dataclass
class Run:
    prometheus: Prometheus
    engine: ObservedEngine
    scraped: Scraped
    received: Received
    alerts: Received
    faulty_since: float

    def until(self, found: Callable[[], object], what: str) -> None:
        """Look after each scrape; give up after a minute of them."""
        for _ in range(60):
            if found():
                return
            self.scraped.wait()
        pytest.fail(what)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("observed")
    received, alerts = Received(), Received()
    engine = ObservedEngine(folder, f"http://127.0.0.1:{received.port}/hook", LOOPBACK)
    proxy = ObservedProxy()
    scraped, other = Scraped(engine.exposition), Scraped(proxy.exposition)
    rules = as_yaml([Group(group.name, group.rules, "1s") for group in GROUPS], Links("https://ce.example"))
    with (
        alertmanager(folder, f"http://127.0.0.1:{alerts.port}/alerts") as manager,
        prometheus(folder, {"engine": scraped.address, "proxy": other.address}, rules, manager) as server,
    ):
        for _ in range(6):
            engine.ask(12)
        engine.tell_audits()
        scraped.wait(2)
        # The counters have been seen at zero: now the fault.
        faulty_since = time.time()
        engine.ask(24)
        for _ in range(4):
            engine.ask(12)
            scraped.wait()
        yield Run(server, engine, scraped, received, alerts, faulty_since)
    scraped.close()
    other.close()
    engine.close()
    received.close()
    alerts.close()


def concrete(expr: str) -> str:
    """As Grafana would ask it, with all jobs and instances chosen."""
    return expr.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*")


def test_no_panel_is_empty(run: Run) -> None:
    empty = list(PANELS)

    def all_answered() -> bool:
        empty[:] = [(title, expr) for title, expr in empty if not run.prometheus.query(concrete(expr))]
        return not empty

    run.until(all_answered, f"nothing comes back for {empty}")


def test_no_rule_and_no_panel_names_a_metric_that_is_not_there(run: Run) -> None:
    recorded = {rule.record for group in GROUPS for rule in group.rules if isinstance(rule, Recording)}
    exprs = [rule.expr for group in GROUPS for rule in group.rules] + [expr for _, expr in PANELS]
    without_labels = [re.sub(r"\{[^}]*\}", "", expr) for expr in exprs]
    named = {name for expr in without_labels for name in NAME.findall(expr)}
    there = run.prometheus.names()
    assert named - there - recorded == set()
    assert len(named) > 40


def test_every_recording_rule_gives_numbers_and_no_rule_fails(run: Run) -> None:
    def settled() -> bool:
        groups = run.prometheus.ask("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) == sum(len(group.rules) for group in GROUPS)
        assert [rule.get("lastError") for rule in rules if rule.get("lastError")] == []
        return all(rule["health"] == "ok" for rule in rules)

    run.until(settled, "a rule has not been evaluated")
    recorded = [rule.record for group in GROUPS for rule in group.rules if isinstance(rule, Recording)]
    run.until(lambda: all(run.prometheus.query(name) for name in recorded), "a recording rule is empty")


def test_the_collector_of_the_run_took_everything_in(run: Run) -> None:
    assert run.engine.collector.totals.failures == 0
    assert run.prometheus.query("checkengine_collector_failures_total == 0")
    assert run.prometheus.query("checkengine_collector_records_total > 3")


def test_a_fault_goes_through_prometheus_and_alertmanager_to_whoever_listens(run: Run) -> None:
    def told(bodies: list[dict[str, object]]) -> bool:
        return any(alert["labels"]["alertname"] == "CheckengineExactFault" for b in bodies for alert in b["alerts"])  # type: ignore[attr-defined,index]

    bodies = run.alerts.wait_for(told)
    (alert,) = [a for b in bodies for a in b["alerts"] if a["labels"]["alertname"] == "CheckengineExactFault"][:1]
    assert (alert["labels"]["job"], alert["labels"]["kind"]) == ("engine", "logits.nonfinite")
    assert alert["annotations"]["dashboard_url"] == "https://ce.example/incidents?kind=logits.nonfinite"
    assert alert["annotations"]["runbook_url"] == "docs/runbooks/CheckengineExactFault.md"
    first = next(i for i, b in enumerate(bodies) if alert in b["alerts"])
    assert run.alerts.times[first] - run.faulty_since < 30.0
    firing = {a["labels"]["alertname"] for b in bodies for a in b["alerts"]}
    assert "CheckengineAbsent" not in firing


def test_the_same_fault_is_told_by_checkengines_own_signed_webhook(run: Run) -> None:
    run.engine.webhooks.send_due()
    (body,) = run.received.wait_for(lambda bodies: len(bodies) >= 1)[:1]
    path, headers, raw = run.received.posts[0]
    verify([secret_bytes(SECRET)], headers, raw, float(headers["webhook-timestamp"]))
    assert path == "/hook"
    assert body["version"] == "4"
    assert body["alerts"][0]["labels"]["kind"] == "logits.nonfinite"
    assert set(body) >= {"groupKey", "status", "receiver", "groupLabels", "commonLabels", "commonAnnotations", "alerts"}


def test_the_dashboards_files_are_what_the_code_generates() -> None:
    for path, text in files().items():
        assert path.read_text() == text, f"write {path.name} anew: checkengine alerts grafana --write"


def test_dashboards_have_unique_ids_panels_that_do_not_overlap_and_a_data_source_that_is_chosen() -> None:
    for path in files():
        model = json.loads(path.read_text())
        panels = model["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells = [
            (x, y)
            for panel in panels
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(cells) == len(set(cells)), path.name
        assert max(x for x, _ in cells) < 24
        for panel in panels:
            if panel["type"] != "row":
                assert panel["datasource"]["uid"] == "${DS_PROMETHEUS}"
                assert panel["targets"], panel["title"]
    assert len({json.loads(path.read_text())["uid"] for path in files()}) == 5
