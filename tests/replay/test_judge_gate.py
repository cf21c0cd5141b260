"""A convicting step repeats in fresh processes, or nobody is convicted."""

from __future__ import annotations

import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fresh_small import ENGINE, FreshSmallExecutor, install
from small_engine import SmallEngine, SmallFault

from checkengine.guards.finding import Finding, Severity
from checkengine.replay.judge import gate as gates
from checkengine.replay.judge.gate import Gate, in_fresh_process
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.judge.wire import Job, pack, unpack
from checkengine.replay.windows import build_window


@pytest.fixture
def findable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", install(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def judged(environment: dict[str, Any], gate: Gate | None = None):
    engine = SmallEngine(SmallFault("over_read", layer=1), seed=3)
    engine.run(16)
    finding = Finding("language.switch", "s1", Severity.WARNING, 0, 0, "test")
    executor = FreshSmallExecutor()
    executor.load(environment)
    window = build_window(engine.capture([1], first=5, findings=(finding,)))
    return Judge(executor, gate=gate).judge(window, finding)


def environment(**options: Any) -> dict[str, Any]:
    return {"engine": ENGINE, "fault": {"kind": "over_read", "layer": 1}, **options}


def test_a_conviction_stands_on_twenty_runs_in_three_fresh_processes(findable: None) -> None:
    told = environment()
    verdict = judged(told, Gate(told))
    test = verdict.tests[-1]
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert (test.name, test.passed) == ("gate", True)
    assert (test.numbers["runs"], test.numbers["processes"]) == (20, 3)
    assert "at most 14 % of runs differ" in test.detail
    assert "fewer" not in test.detail


def test_what_repeats_in_one_process_and_not_in_fresh_ones_convicts_nobody(findable: None) -> None:
    told = environment(by_process=True)
    assert judged(told).kind is VerdictKind.CODE_DEFECT
    verdict = judged(told, Gate(told, runs=4, processes=2))
    assert verdict.kind is VerdictKind.NONDETERMINISM
    assert "attention of layer 1" in verdict.sentence
    assert verdict.tests[-1].numbers["different"] == 4


def test_fewer_runs_are_said_with_their_weaker_bound(findable: None) -> None:
    told = environment()
    test = judged(told, Gate(told, runs=3, processes=1)).tests[-1]
    assert test.passed
    assert "3 runs in 1 fresh process (fewer than 20 in 3)" in test.detail
    assert test.numbers["rate_high"] == pytest.approx(1 - 0.05 ** (1 / 3))


def test_a_fresh_process_that_cannot_load_the_record_is_said_and_the_verdict_stays() -> None:
    told = environment(engine="nobody's")
    verdict = judged(told, Gate(told, runs=2, processes=1))
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert verdict.tests[-1].passed is None
    assert "not run in a fresh process" in verdict.tests[-1].detail
    assert "nobody's" in verdict.tests[-1].detail


def test_a_fresh_process_that_dies_is_an_error_and_no_verdict() -> None:
    assert "error" in in_fresh_process(b"", ("python3", "-c", "import os; os.abort()"))
    assert "error" in in_fresh_process(b"", ("no-such-program-here",))


def test_nothing_is_asked_of_fresh_processes_where_nobody_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> dict[str, Any]:
        raise AssertionError("a fresh process was started")

    monkeypatch.setattr(gates, "in_fresh_process", refused)
    engine = SmallEngine(seed=4)
    engine.run(12)
    executor = FreshSmallExecutor()
    verdict = Judge(executor, gate=Gate({})).judge(build_window(engine.capture([1], first=3)))
    assert verdict.kind is VerdictKind.NO_FAULT


def test_content_goes_to_a_fresh_process_through_a_pipe_and_touches_no_disk(
    findable: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []
    plain = subprocess.run

    def watched(command: Any, **options: Any) -> Any:
        seen.append({"command": command, **options})
        return plain(command, **options)

    monkeypatch.setattr(gates.subprocess, "run", watched)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    told = environment()
    judged(told, Gate(told, runs=1, processes=1))
    assert not list((tmp_path / "tmp").iterdir())
    assert len(seen[0]["input"]) > 1000
    assert not any(str(tmp_path) in part for part in seen[0]["command"])


def test_a_window_comes_out_of_the_pipe_as_it_went_in() -> None:
    engine = SmallEngine(SmallFault("over_read"), seed=5, blocks=24)
    engine.run(30)
    window = build_window(engine.capture([1, 2], first=4, last=20))
    found = unpack(pack(Job({"a": 1}, window, -64.0, 3)))
    assert (found.environment, found.fill, found.runs) == ({"a": 1}, -64.0, 3)
    assert found.window.starts == window.starts
    for name, tensor in window.image.tensors.items():
        assert torch.equal(found.window.image.tensors[name], tensor)
    for one, other in zip(window.steps, found.window.steps, strict=True):
        for field in fields(one.replay.record):
            before, after = getattr(one.replay.record, field.name), getattr(other.replay.record, field.name)
            if isinstance(before, np.ndarray) and field.name not in ("fingerprints", "block_changes"):
                assert np.array_equal(before, after), field.name
        tables = zip(one.replay.block_tables, other.replay.block_tables, strict=True)
        assert all(np.array_equal(before, after) for before, after in tables)
        assert (one.neighbours is None) == (other.neighbours is None)
        if one.neighbours is not None and other.neighbours is not None:
            assert np.array_equal(one.neighbours.slots, other.neighbours.slots)
            assert np.array_equal(one.neighbours_read, other.neighbours_read)
