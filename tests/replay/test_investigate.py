from __future__ import annotations

import json

import pytest
from small_engine import SmallEngine, SmallExecutor, SmallFault

from checkengine.guards.finding import Finding, Severity
from checkengine.guards.nonfinite import NonFiniteGuard
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.settings import GuardsSettings
from checkengine.replay.investigate import CANNOT_JUDGE, NOT_REPRODUCED, REPRODUCED, investigate
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.replayer import Replayer
from checkengine.replay.windows import build_window


def guards() -> Pipeline:
    return Pipeline([NonFiniteGuard()], GuardsSettings(), cpu_clock=lambda: 0)


def nan_capture(*, first: int = 0, last: int = 20):
    """A capture with the finding that the guard raises on its steps."""
    engine = SmallEngine(SmallFault("nan_attention", layer=1, remainder=1), seed=3)
    engine.run(30)
    executor = SmallExecutor(engine.model, engine.fault)
    found = Replayer(executor, engine.capture([1], last=last), guards).replay().findings
    assert [finding.sequence for finding in found] == ["s1"]
    return engine, executor, engine.capture([1], first=first, last=last, findings=tuple(found))


def test_a_finding_that_fires_again_ends_with_exit_code_one_and_a_verdict():
    _, executor, capture = nan_capture()
    found = investigate(capture, executor, guards, bundle="b")
    assert found.reproduced is True
    assert found.exit_code == REPRODUCED
    assert found.reference_fires is False
    assert found.verdict is not None
    assert found.verdict.kind is VerdictKind.CODE_DEFECT


def test_a_repaired_kernel_does_not_reproduce_and_ends_with_exit_code_zero():
    engine, _, capture = nan_capture()
    found = investigate(capture, SmallExecutor(engine.model, SmallFault()), guards)
    assert found.forced is not None
    assert found.forced.first_difference is not None
    assert found.reproduced is False
    assert found.exit_code == NOT_REPRODUCED


def test_the_reference_kernel_by_name_replays_without_a_verdict():
    _, executor, capture = nan_capture()
    found = investigate(capture, executor, guards, kernel="reference")
    assert (found.reproduced, found.verdict, found.exit_code) == (False, None, NOT_REPRODUCED)


def test_a_finding_without_guards_cannot_be_judged():
    _, executor, capture = nan_capture()
    found = investigate(capture, executor, None)
    assert found.reproduced is None
    assert found.exit_code == CANNOT_JUDGE
    assert found.notes


def test_a_bundle_without_a_finding_is_judged_by_its_verdict():
    right, wrong = SmallEngine(seed=4), SmallEngine(SmallFault("over_read"), seed=4)
    for engine, kind, code in (
        (right, VerdictKind.NO_FAULT, NOT_REPRODUCED),
        (wrong, VerdictKind.CODE_DEFECT, REPRODUCED),
    ):
        engine.run(20)
        found = investigate(engine.capture([1], first=5), SmallExecutor(engine.model, engine.fault), guards)
        assert found.verdict is not None
        assert found.verdict.kind is kind
        assert found.exit_code == code


def test_the_json_has_the_promised_keys_and_no_nan():
    _, executor, capture = nan_capture()
    told = json.loads(json.dumps(investigate(capture, executor, guards, bundle="b").to_dict(), allow_nan=False))
    promised = {"bundle", "bit_exact", "from_step", "steps", "rows", "equal_rows", "first_difference", "reproduced"}
    promised |= {"finding", "reference", "verdict", "exact_from", "seconds"}
    assert promised <= told.keys()
    assert told["bit_exact"] is True
    assert told["exact_from"] == "undo"
    assert told["reference"]["finding_fires"] is False
    assert told["verdict"]["kind"] == "code defect"
    assert told["finding"]["kind"] == "logits.nonfinite"


def test_a_read_of_another_involved_sequences_live_slot_is_convicted_for_the_suspect():
    engine = SmallEngine(SmallFault("over_read", remainder=0), seed=12, blocks=24)
    engine.run(50)
    executor = SmallExecutor(engine.model, engine.fault)
    everyone = sorted({int(handle) for record in engine.records[16:24] for handle in record.handles})
    of_others = 0
    for handle in everyone:
        finding = Finding("language.switch", f"s{handle}", Severity.WARNING, 23, 0, "test")
        capture = engine.capture(everyone, first=16, last=23, findings=(finding,))
        verdict = investigate(capture, executor, None).verdict
        assert verdict is not None
        steps = {step.number: step for step in build_window(capture).steps}
        of_others += any(place.slot in steps[verdict.step].owned for place in verdict.slots)
    assert of_others


@pytest.mark.parametrize("seed", [3, 4])
def test_replaying_twice_gives_the_same_answer(seed: int):
    engine = SmallEngine(SmallFault("over_read", layer=1), seed=seed)
    engine.run(20)
    executor = SmallExecutor(engine.model, engine.fault)
    first, second = (investigate(engine.capture([1], first=4), executor, guards).to_dict() for _ in range(2))
    first.pop("seconds"), second.pop("seconds")
    assert first == second


def test_a_bit_exact_replay_of_the_record_counts_as_the_second_run():
    engine = SmallEngine(SmallFault("over_read"), seed=3)
    engine.run(20)
    found = investigate(engine.capture([1], first=4), SmallExecutor(engine.model, engine.fault), guards)
    assert found.verdict is not None
    assert found.verdict.tests[0].detail == f"record and replay of {found.forced.steps} steps are bit-equal"
    assert found.verdict.kind is VerdictKind.CODE_DEFECT


def test_noise_that_starts_after_the_replay_is_nondeterminism_and_no_over_read():
    engine = SmallEngine(seed=3)
    engine.run(20)
    executor = SmallExecutor(engine.model, SmallFault())
    capture = engine.capture([1], first=4)
    replayer = Replayer(executor, capture)
    replay = replayer.replay(hashes=True)
    assert replay.bit_exact
    executor.fault = SmallFault("nondeterministic", layer=1)
    verdict = Judge(executor).judge(replayer.window, None, replay)
    assert verdict.kind is VerdictKind.NONDETERMINISM


@pytest.mark.parametrize(("fault", "again"), [(SmallFault("over_read"), True), (SmallFault(), False)])
def test_an_audits_finding_fires_again_where_the_judge_convicts_again(fault: SmallFault, again: bool):
    wrong = SmallEngine(SmallFault("over_read"), seed=4)
    wrong.run(20)
    finding = Finding("audit.defect", "s1", Severity.ERROR, step=12, token=0, guard="audit")
    capture = wrong.capture([1], first=5, findings=(finding,))
    found = investigate(capture, SmallExecutor(wrong.model, fault), guards)
    assert found.reproduced is again
    assert found.exit_code == (REPRODUCED if again else NOT_REPRODUCED)
