from __future__ import annotations

import pytest
from small_engine import SmallEngine, SmallExecutor, SmallFault

from checkengine.replay.audit import Auditor, audit_event
from checkengine.replay.judge.verdict import VerdictKind


def audited(fault: SmallFault | None, *, seed: int, step: int):
    engine = SmallEngine(fault, seed=seed)
    engine.run(step + 6)
    handles = engine.records[step].handles.tolist()
    capture = engine.capture(handles, first=step, last=step)
    return capture, Auditor(SmallExecutor(engine.model, engine.fault)).audit(capture)


def test_a_quiet_over_read_is_convicted_by_an_audit_of_one_healthy_looking_step():
    capture, verdict = audited(SmallFault("over_read"), seed=3, step=18)
    assert capture.findings == ()
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert "one past the end" in verdict.sentence
    event = audit_event(verdict, capture, time=5.0)
    assert (event.verdict, event.step, event.sequence) == ("code defect", 18, verdict.sequence)


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_an_audit_of_a_right_kernel_finds_no_fault(seed: int):
    _, verdict = audited(None, seed=seed, step=15)
    assert verdict.kind is VerdictKind.NO_FAULT
    assert all(test.passed is not False for test in verdict.tests)


def test_an_audit_grades_a_masked_read_apart():
    kinds = {audited(SmallFault("masked_read"), seed=3, step=step)[1].kind for step in (17, 18)}
    assert VerdictKind.NAN_UNSAFE in kinds
