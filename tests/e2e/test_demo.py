"""The main job, end to end on the real model: serve, catch, stop, capture, replay, judge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkengine.replay.bundle import BundleReader
from checkengine.replay.catalog import Catalog, queries
from checkengine.replay.catalog.models import IncidentRow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(out: Path) -> dict[str, Any]:
    """The command as a person runs it."""
    command = [sys.executable, "-m", "checkengine", "demo", "--json", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def drills(demo: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {drill["name"]: drill for drill in demo["drills"]}


def test_a_clean_run_has_no_finding_and_the_same_tokens_with_and_without_guards(demo: dict[str, Any]) -> None:
    assert demo["clean"]["requests"] >= 16
    assert demo["clean"]["findings"] == 0
    assert demo["clean"]["equal"]


def test_every_drill_is_caught_captured_reproduced_bit_for_bit_and_judged_a_code_defect(
    drills: dict[str, dict[str, Any]],
) -> None:
    for drill in drills.values():
        assert drill["caught_after_tokens"] is not None, drill
        assert drill["replay"]["bit_exact"], drill
        assert drill["replay"]["reproduced"], drill
        assert drill["verdict"].startswith("code defect"), drill


def test_every_drills_verdict_stands_in_the_catalog_for_the_dashboard(
    demo: dict[str, Any], drills: dict[str, dict[str, Any]], out: Path
) -> None:
    catalog = Catalog.open(out / "catalog.db")
    with catalog.reading() as session:
        for drill in drills.values():
            (replay,) = queries.replays(session, Path(drill["bundle"]).name)
            assert replay.verdict == drill["verdict_kind"]
    catalog.close()


def test_no_neighbour_of_a_stopped_sequence_gets_another_token(drills: dict[str, dict[str, Any]]) -> None:
    assert all(drill["neighbours_equal"] for drill in drills.values())


def test_nan_is_caught_and_stopped_on_the_very_token_and_its_layer_is_named(drills: dict[str, dict[str, Any]]) -> None:
    drill = drills["nan_loop"]
    assert (drill["caught_after_tokens"], drill["stopped"], drill["layers"]) == (0, True, [12])
    assert drill["unguarded_tokens"] == 256


def test_the_runaway_call_is_stopped_by_its_second_repeat_at_the_latest(drills: dict[str, dict[str, Any]]) -> None:
    drill = drills["runaway_tool_call"]
    assert drill["stopped"]
    assert drill["guarded_text"].count('"search"') <= 3
    assert {finding["kind"] for finding in drill["findings"]} >= {"stop.ignored", "tool_call.runaway"}


def test_the_over_read_is_stopped_and_its_slot_is_one_past_the_end(drills: dict[str, dict[str, Any]]) -> None:
    drill = drills["off_by_one"]
    assert drill["stopped"]
    assert drill["tokens_saved"] > 200
    assert any("one past the end of sequence article" in slot for slot in drill["slots"])


def test_the_quiet_over_read_is_convicted_by_the_audit_while_no_guard_sees_anything(
    drills: dict[str, dict[str, Any]],
) -> None:
    drill = drills["off_by_one_quiet"]
    assert {finding["guard"] for finding in drill["findings"]} == {"audit"}
    assert any("one past the end of sequence article" in slot for slot in drill["slots"])


def test_bundles_verify_the_catalog_knows_the_incidents_and_the_report_asks_for_nothing_outside(
    demo: dict[str, Any], out: Path
) -> None:
    for drill in demo["drills"]:
        BundleReader(Path(drill["bundle"])).verify()
    with Catalog.open(out / "catalog.db").reading() as session:
        known = {incident.id for incident in session.query(IncidentRow)}
    assert {drill["incident"] for drill in demo["drills"]} <= known
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "http" not in report.replace("http-equiv", "")
