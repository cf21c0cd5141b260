from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_engine import BLOCK, SmallEngine, SmallExecutor, SmallFault

from checkengine.replay.audit import Auditor, AuditSchedule, audit_event
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.record import StepRecord


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


def decode_record(step: int, lengths: list[int]) -> StepRecord:
    rows = len(lengths)
    return StepRecord(
        step=step,
        time_ns=step,
        handles=np.arange(rows, dtype=np.int32),
        query_lengths=np.ones(rows, np.int32),
        starts=np.array(lengths, np.int32) - 1,
        samples=np.ones(rows, np.bool_),
        token_ids=np.zeros(rows, np.int32),
    )


def test_the_schedule_audits_one_step_in_so_many_on_average_and_repeats_with_its_seed():
    def audited_steps(seed: int) -> list[int]:
        schedule = AuditSchedule(every_steps=20, block_size=32, seed=seed)
        return [step for step in range(8000) if schedule.choose(decode_record(step, [40 + step % 100]))]

    first = audited_steps(1)
    assert first == audited_steps(1)
    assert first != audited_steps(2)
    assert 300 < len(first) < 500
    assert len(set(np.diff(first))) > 10


def test_the_schedule_prefers_rows_at_page_edges_over_the_many_others():
    schedule = AuditSchedule(every_steps=1, block_size=32, seed=0, rows_per_audit=1)
    chosen = []
    for step in range(400):
        record = decode_record(step, [33 + step % 3 * 32, 64, 63, *([40] * 13)])
        chosen += schedule.choose(record)
    at_edges = sum(handle < 3 for handle in chosen)
    assert at_edges / len(chosen) > 0.6
    assert {"page start", "page full", "page end"} <= schedule.counts.keys()


def test_strata_tell_prefix_hits_chunk_edges_and_reused_blocks():
    schedule = AuditSchedule(every_steps=1, block_size=BLOCK)
    first = decode_record(0, [10])
    first.block_changes = np.array([[0, 0, 7]], np.int32)
    assert "prefix hit" in schedule.strata(first)[0]
    schedule.choose(first)
    assert "prefix hit" not in schedule.strata(decode_record(1, [11]))[0]
    again = replace(first, step=2, handles=np.array([5], np.int32), query_lengths=np.array([3], np.int32))
    again.block_changes = np.array([[5, 0, 7]], np.int32)
    assert {"chunk edge", "reused block"} <= set(schedule.strata(again)[0])


def test_a_schedule_that_never_audits_is_refused():
    with pytest.raises(ValueError, match="every_steps"):
        AuditSchedule(every_steps=0, block_size=32)
