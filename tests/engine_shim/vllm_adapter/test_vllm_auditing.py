"""Audits that are judged in another process; here it is a small one of the test's own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from checkengine.engine_shim.vllm.auditing import ProcessAuditor
from checkengine.guards.step import SequenceStart
from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.memory import MemoryImage
from checkengine.replay.record import StepRecord
from checkengine.replay.recorder import Recorder

JUDGE = """
import json, sys
from pathlib import Path
print("started", file=open({log!r}, "a"))
for line in sys.stdin:
    asked = json.loads(line)
    assert (Path(asked["bundle"]) / "manifest.json").exists()
    print(json.dumps({{"verdict": {{"kind": "code defect", "sentence": "reads too far", "sequence": "a", "step": 3,
        "fault_class": "over-read", "layers": [0, 2], "replays_used": 4}}}}), flush=True)
    if {dies}:
        sys.exit(3)
"""


def process(folder: Path, dies: bool) -> ProcessAuditor:
    script = folder / "judge.py"
    script.write_text(JUDGE.format(log=str(folder / "log"), dies=dies))
    return ProcessAuditor([sys.executable, str(script)])


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capture:
    monkeypatch.setenv("CHECKENGINE_STATE", str(tmp_path / "state"))
    recorder = Recorder(8, 1 << 20)
    one = np.zeros(1, np.int32)
    record = StepRecord(0, 0, one, one + 1, one, np.ones(1, np.bool_), one + 5, np.array([[0, 0, 1]], np.int32))
    record.begun = (SequenceStart(0, "a", (5,)),)
    recorder.begin(record)
    recorder.finish(0, np.array([7], np.uint64), one + 9)
    tensors = {f"full.{part}": torch.zeros(1, 1, 4, 1, 2) for part in ("key", "value")}
    return Capture(recorder.window(), MemoryImage(4, one + 1, tensors, {"full": [0]}), frozenset({0}))


def test_the_other_process_tells_the_verdict_and_nothing_of_the_step_stays(tmp_path: Path, capture: Capture) -> None:
    auditor = process(tmp_path, dies=False)
    try:
        for _ in range(2):
            verdict = auditor.audit(capture, {0: 7})
            assert (verdict.kind, verdict.sequence, verdict.layers) == (VerdictKind.CODE_DEFECT, "a", (0, 2))
    finally:
        auditor.close()
    assert (tmp_path / "log").read_text().splitlines() == ["started"]
    assert not list(Path("/dev/shm").glob("checkengine-*/*"))


def test_a_process_that_died_is_started_again(tmp_path: Path, capture: Capture) -> None:
    auditor = process(tmp_path, dies=True)
    try:
        assert auditor.audit(capture).kind is VerdictKind.CODE_DEFECT
        assert auditor._process is not None
        auditor._process.wait(10)
        assert auditor.audit(capture).kind is VerdictKind.CODE_DEFECT
    finally:
        auditor.close()
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_a_process_that_cannot_start_costs_the_audit_and_says_so(capture: Capture) -> None:
    auditor = ProcessAuditor([sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(CannotReplayError, match="could not judge"):
        auditor.audit(capture)
    auditor.close()
