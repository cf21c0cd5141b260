from __future__ import annotations

import numpy as np
import pytest
from small_engine import BLOCK, SmallEngine, SmallExecutor, SmallFault, SmallModel

from checkengine.replay.audit import Auditor, audit_event
from checkengine.replay.audit.screen import NAN_SHARE
from checkengine.replay.capture import Capture
from checkengine.replay.judge.fills import FINITE_FILLS
from checkengine.replay.judge.verdict import VerdictKind


def audited(fault: SmallFault | None, *, seed: int, step: int):
    engine = SmallEngine(fault, seed=seed)
    engine.run(step + 6)
    handles = engine.records[step].handles.tolist()
    capture = engine.capture(handles, first=step, last=step)
    return capture, Auditor(SmallExecutor(engine.model, engine.fault), seed=0).audit(capture)


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


def test_an_audit_grades_a_masked_read_apart_wherever_it_fills_with_nan():
    """Which fill an audit screens with is drawn: only NaN shows a masked read, so every draw is named here."""
    capture, _ = audited(SmallFault("masked_read"), seed=3, step=18)
    assert tails_are_masked(capture)
    by_fill: dict[bool, set[VerdictKind]] = {True: set(), False: set()}
    for seed in range(8):
        verdict = Auditor(SmallExecutor(SmallModel(), SmallFault("masked_read")), seed=seed).audit(capture)
        by_fill[drew_nan(seed)].add(verdict.kind)
    assert by_fill == {True: {VerdictKind.NAN_UNSAFE}, False: {VerdictKind.NO_FAULT}}


def drew_nan(seed: int) -> bool:
    """In the order of draws that the screen makes."""
    random = np.random.default_rng(seed)
    random.choice(FINITE_FILLS)
    return random.random() < NAN_SHARE


def tails_are_masked(capture: Capture) -> bool:
    record = capture.window.records[-1]
    return bool(((record.starts + record.query_lengths) % BLOCK != 0).any())
