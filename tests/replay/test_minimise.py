"""Minimising with an executor that cannot run one op alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_engine import SmallEngine, SmallExecutor, SmallFault

from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle import BundleReader
from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.investigate import investigate
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.minimise.convict import convict
from checkengine.replay.minimise.minimise import Minimised, minimise
from checkengine.replay.minimise.reproducer import content_free_reproducer, digest_of, write_reproducer
from checkengine.replay.minimise.symptom import Shown


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))


def shrunk(fault: SmallFault, seed: int = 5, **options: int) -> tuple[Minimised, Capture, SmallExecutor, Verdict]:
    engine = SmallEngine(fault, seed)
    engine.run(30)
    handle = next(h for h, live in engine.live.items() if live.computed > 8)
    finding = Finding("language.switch", f"s{handle}", Severity.WARNING, engine.records[-1].step, 0, "test")
    capture = engine.capture([handle], first=12, undo_from=12, findings=(finding,))
    executor = SmallExecutor(engine.model, fault)
    verdict = convict(capture, executor)
    return minimise(capture, executor, verdict, **options), capture, executor, verdict


@pytest.mark.parametrize(
    ("fault", "kind", "shown"),
    [
        (SmallFault("over_read", layer=1), VerdictKind.CODE_DEFECT, Shown.FINITE_FILL),
        (SmallFault("masked_read"), VerdictKind.NAN_UNSAFE, Shown.NAN_FILL),
        (SmallFault("nan_attention", layer=1), VerdictKind.CODE_DEFECT, Shown.NOT_FINITE),
        (SmallFault("nan_head", layer=-1), VerdictKind.CODE_DEFECT, Shown.NOT_FINITE),
    ],
)
def test_without_single_calls_the_search_ends_at_one_step_and_says_so(
    fault: SmallFault, kind: VerdictKind, shown: Shown
) -> None:
    found, _, _, verdict = shrunk(fault)
    assert (found.symptom.kind, found.symptom.shown) == (kind, shown)
    assert verdict.kind is kind
    assert found.call is None
    assert found.step.rows == 1
    assert found.minimal
    assert "cannot run one op alone" in str(found.stopped)
    assert found.replays <= 20


def test_a_step_reproducer_is_a_bundle_that_is_judged_the_same_again(tmp_path: Path) -> None:
    found, capture, executor, verdict = shrunk(SmallFault("over_read", layer=1))
    path = write_reproducer(found, capture, executor, tmp_path)
    again = BundleReader(path).capture()
    assert [len(record.handles) for record in again.window.records] == [1]
    judged = investigate(again, executor, None).verdict
    assert judged is not None
    assert (judged.kind, judged.layers) == (verdict.kind, verdict.layers)
    assert "one past the end" in judged.sentence


def test_a_reproducer_names_its_parent_by_digest_only(tmp_path: Path) -> None:
    found, capture, executor, _ = shrunk(SmallFault("over_read", layer=1))
    first = write_reproducer(found, capture, executor, tmp_path)
    second = write_reproducer(found, capture, executor, tmp_path, parent=first)
    lineage = BundleReader(second).json("lineage.json")
    assert lineage["parent"] == {"manifest_sha256": digest_of(first)}
    assert BundleReader(first).identifier not in json.dumps(lineage)
    assert lineage["made_by"] == "minimise"
    assert lineage["replays"] == found.replays


def test_a_step_is_never_called_content_free(tmp_path: Path) -> None:
    found, capture, executor, _ = shrunk(SmallFault("over_read", layer=1))
    with pytest.raises(CannotReplayError, match="cannot run one op alone"):
        write_reproducer(found, capture, executor, tmp_path / "out", content_free=True)
    assert content_free_reproducer(capture, executor, tmp_path / "out") is None
    assert not (tmp_path / "out").exists()


def test_a_capture_in_which_no_kernel_is_convicted_is_refused() -> None:
    with pytest.raises(CannotReplayError, match="no kernel was convicted"):
        shrunk(SmallFault())


def test_too_small_a_budget_is_said_and_never_overrun() -> None:
    with pytest.raises(CannotReplayError, match="2 replays are too few"):
        shrunk(SmallFault("over_read"), budget=2)
    found, _, _, _ = shrunk(SmallFault("over_read"), budget=4)
    assert found.replays <= 4
    assert not found.minimal
    assert "larger budget" in str(found.stopped)
