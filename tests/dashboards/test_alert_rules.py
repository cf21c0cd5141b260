"""The rule file is what the code generates, and every alert keeps quiet, waits, fires and ends as it should."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import alert_cases

from checkengine.benchmarks.debian import program
from checkengine.dashboards.rules.groups import FILE, GROUPS, alerts, rules_yaml
from checkengine.dashboards.rules.rule import Alert, Group, Links, Recording, as_yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def promtool() -> str:
    return program("promtool", "prometheus")


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def test_the_rule_file_is_what_the_code_generates() -> None:
    assert FILE.read_text() == rules_yaml(), "write it anew: checkengine alerts rules --write"


def test_promtool_takes_the_rule_file(promtool: str) -> None:
    run(promtool, "check", "rules", FILE)


def promtool_test(promtool: str, folder: Path, groups: Sequence[Group], cases: Sequence[alert_cases.Case]) -> None:
    """Rules without intervals of their own: in the tests' hours nothing happens within a minute."""
    links = Links("https://dashboard.example", "https://runbooks.example")
    (folder / "rules.yaml").write_text(as_yaml([Group(group.name, group.rules) for group in groups], links))
    names = sorted({rule.name for group in groups for rule in group.rules if isinstance(rule, Alert)})
    (folder / "tests.yaml").write_text(json.dumps(alert_cases.tests_file("rules.yaml", links, cases, names)))
    run(promtool, "test", "rules", folder / "tests.yaml")


@pytest.mark.parametrize("subject", ["burn", "faults", "watcher"])
def test_every_alert_is_quiet_waits_fires_and_ends(promtool: str, tmp_path: Path, subject: str) -> None:
    cases = {"burn": alert_cases.BURNS, "faults": alert_cases.FAULTS, "watcher": alert_cases.WATCHER}[subject]
    chosen = ("checkengine-objectives", "checkengine-burn") if subject == "burn" else (f"checkengine-{subject}",)
    promtool_test(promtool, tmp_path, [group for group in GROUPS if group.name in chosen], cases)


def test_every_alert_has_a_case_that_fires_and_a_time_at_which_it_does_not() -> None:
    for alert in alerts():
        states = [state for case in alert_cases.CASES if case.alert == alert.name for state in case.states.values()]
        mine = [labels for fired in states for labels in fired if alert.labels.items() <= labels.items()]
        assert mine, alert
        assert [] in states, alert.name


def test_a_case_that_expects_the_wrong_state_is_noticed(promtool: str, tmp_path: Path) -> None:
    wrong = alert_cases.Case("CheckengineExactFault", {}, {32: [alert_cases.KIND]})
    with pytest.raises(AssertionError, match="CheckengineExactFault"):
        promtool_test(promtool, tmp_path, [group for group in GROUPS if group.name == "checkengine-faults"], [wrong])


def test_every_alert_has_words_a_runbook_and_a_page() -> None:
    for alert in alerts():
        assert re.fullmatch("Checkengine[A-Z][A-Za-z]+", alert.name)
        assert re.fullmatch(r"[A-Z][^{}]+\.", alert.summary), alert.summary
        assert alert.description[-1] in ".?", alert.description
        assert (ROOT / "docs" / "runbooks" / f"{alert.name}.md").is_file(), alert.name
        assert alert.page.startswith("/")


def test_a_runbook_says_what_it_means_what_to_look_at_and_what_to_do() -> None:
    names = {alert.name for alert in alerts()}
    for path in sorted((ROOT / "docs" / "runbooks").glob("*.md")):
        assert path.stem in names, path
        text = path.read_text()
        assert text.startswith(f"# {path.stem}\n")
        for heading in ("## Meaning", "## Look at", "## Do"):
            assert f"\n{heading}\n" in text, (path.name, heading)


def test_recording_rules_are_named_level_metric_operation() -> None:
    for group in GROUPS:
        for rule in group.rules:
            if isinstance(rule, Recording):
                assert re.fullmatch("checkengine:[a-z_]+:[a-z0-9_]+", rule.record)


def test_links_lead_where_the_deployment_says() -> None:
    text = rules_yaml(Links("https://ce.example", "https://wiki.example/ce"))
    assert 'runbook_url: "https://wiki.example/ce/CheckengineExactFault.md"' in text
    assert 'dashboard_url: "https://ce.example/incidents?kind={{ $labels.kind }}"' in text
