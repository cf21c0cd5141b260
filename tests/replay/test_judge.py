from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_engine import BLOCK, SmallEngine, SmallExecutor, SmallFault

from checkengine.guards.finding import Finding, Severity
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.replayer import Replayer
from checkengine.replay.windows import build_window, window_of_all_rows


class CallsAlwaysFires:
    """A guard's stand-in for the judge's last test: reports every sequence once, where it sees logits."""

    def __init__(self) -> None:
        self.reported: set[str] = set()

    def begin(self, start) -> None:
        pass

    def observe(self, step):
        new = [name for name in step.sequences if step.stats is not None and name not in self.reported]
        self.reported |= set(new)
        return [finding_on(name, step=step.step) for name in new]


def finding_on(sequence: str, step: int = 0, kind: str = "language.switch") -> Finding:
    return Finding(kind, sequence, Severity.WARNING, step, 0, "test")


def engine_with(fault: SmallFault | None = None, seed: int = 3, steps: int = 40, **options) -> SmallEngine:
    engine = SmallEngine(fault, seed=seed, **options)
    engine.run(steps)
    return engine


def judged(engine: SmallEngine, handle: int, *, first: int = 5, last: int | None = None, undo_from: int = 0, **options):
    finding = finding_on(f"s{handle}")
    capture = engine.capture([handle], first=first, last=last, undo_from=undo_from, findings=(finding,))
    executor = SmallExecutor(engine.model, engine.fault)
    replayer = Replayer(executor, capture)
    judge = Judge(executor, guards=CallsAlwaysFires, **options)
    return judge.judge(replayer.window, finding, replayer.replay())


def detail_of(verdict: Verdict, name: str) -> str:
    return next(test.detail for test in verdict.tests if test.name == name)


def test_an_over_read_is_convicted_with_its_layers_and_the_slot_past_the_end():
    verdict = judged(engine_with(SmallFault("over_read")), 1)
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert "reads memory it does not own" in verdict.sentence
    assert verdict.layers == (0, 1)
    assert len(verdict.slots) == 1
    assert "one past the end of sequence s1" in verdict.sentence
    assert verdict.replays_used < 40


def test_an_over_read_of_one_layer_is_pinned_to_that_layer():
    for layer in (0, 1):
        verdict = judged(engine_with(SmallFault("over_read", layer=layer), seed=4), 1)
        assert verdict.layers == (layer,)
        assert verdict.layer == layer


def test_an_over_read_at_a_full_page_names_the_slot_of_the_block_behind():
    verdict = judged(engine_with(SmallFault("over_read", remainder=0)), 1)
    assert verdict.kind is VerdictKind.CODE_DEFECT
    (place,) = verdict.slots
    assert place.slot % BLOCK == 0
    assert place.position is None
    assert "in the next block" in place.words


def test_an_over_read_is_convicted_without_the_undo_ring_under_fills():
    engine = engine_with(SmallFault("over_read"))
    verdict = judged(engine, 1, last=25, undo_from=99)
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert "one past the end" in verdict.sentence


def test_a_masked_read_of_unowned_memory_is_graded_apart():
    verdict = judged(engine_with(SmallFault("masked_read", layer=1)), 1)
    assert verdict.kind is VerdictKind.NAN_UNSAFE
    assert verdict.layers == (1,)
    assert verdict.slots


def test_nan_from_one_layers_attention_is_a_defect_of_that_layer():
    verdict = judged(engine_with(SmallFault("nan_attention", layer=1, remainder=1)), 1, first=0)
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert verdict.layers == (1,)
    assert "attention of layer 1" in verdict.sentence


def test_nan_from_the_head_is_told_from_nan_in_a_layer():
    verdict = judged(engine_with(SmallFault("nan_head", layer=-1, remainder=2)), 1, first=0)
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert verdict.layers == ()
    assert "the head (logits)" in verdict.sentence


def test_nan_that_lay_in_kv_before_the_window_is_called_stale():
    engine = engine_with(seed=5)
    capture = engine.capture([1], first=6, last=15)
    window = build_window(capture)
    slot = int(window.steps[0].live[0])
    row = int(np.flatnonzero(window.image.blocks == slot // BLOCK)[0])
    window.image.tensors["kv.value"][row, 1, slot % BLOCK] = float("nan")
    verdict = Judge(SmallExecutor(engine.model, engine.fault)).judge(window, finding_on("s1"))
    assert verdict.kind is VerdictKind.STALE_KV
    assert f"slot {slot}" in verdict.sentence


def test_a_step_that_does_not_repeat_is_called_nondeterministic_and_nothing_else():
    verdict = judged(engine_with(SmallFault("nondeterministic", layer=1)), 1)
    assert verdict.kind is VerdictKind.NONDETERMINISM
    assert [test.name for test in verdict.tests] == ["repeat"]
    assert "attention of layer 1" in verdict.sentence


def test_an_end_token_that_was_passed_over_is_a_defect_of_the_stop_path():
    engine = SmallEngine(seed=6)
    engine.run(30)
    committed = int(engine.records[12].sampled[0])
    engine = SmallEngine(seed=6, stop=committed)
    engine.run(30)
    handle = int(engine.records[12].sampling_handles[0])
    verdict = judged(engine, handle, first=10)
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert "stop path" in verdict.sentence
    assert f"end token {committed}" in verdict.sentence


def test_a_masked_end_token_is_seen_as_the_largest_logit_that_was_not_committed():
    engine = engine_with(seed=6)
    record = next(r for r in engine.records[10:] if 1 in r.sampling_handles)
    index = int(np.flatnonzero(record.sampling_handles == 1)[0])
    top = int(record.sampled[index])
    for handle, start in engine.starts.items():
        engine.starts[handle] = type(start)(handle, start.name, start.prompt_tokens, start.sampling, (top,))
    record.sampled = record.sampled.copy()
    record.sampled[index] = (top + 1) % 48
    verdict = judged(engine, 1, first=record.step, last=record.step)
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert "masked out of sampling" in verdict.sentence


def test_a_habit_of_the_model_is_inconclusive_and_says_that_nothing_differs():
    verdict = judged(engine_with(seed=7), 1)
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "the model itself (habit)" in verdict.sentence
    assert "the finding fires there too" in detail_of(verdict, "reference")


def test_a_wrong_scale_that_reads_only_its_own_memory_is_never_convicted_by_a_tolerance():
    verdict = judged(engine_with(SmallFault("wrong_scale"), seed=7), 1)
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "only a tolerance" in verdict.sentence


def test_a_record_whose_bits_do_not_come_again_is_transient_on_equal_ground_only():
    def flipped() -> SmallEngine:
        engine = engine_with(seed=8)
        record = next(r for r in engine.records[10:] if 1 in r.sampling_handles)
        record.fingerprints = record.fingerprints + np.uint64(1)
        return engine

    assert judged(flipped(), 1, everybody=all_rows(flipped())).kind is VerdictKind.TRANSIENT
    assert judged(flipped(), 1, changed=["torch was 2.12, is 2.13"]).kind is VerdictKind.INCONCLUSIVE
    assert judged(flipped(), 1, last=25, undo_from=99).kind is VerdictKind.INCONCLUSIVE


@pytest.mark.parametrize("everybody", [None, lambda: None], ids=["not asked for", "not in the capture"])
def test_nothing_is_transient_before_all_rows_ran_as_they_were(everybody):
    engine = engine_with(seed=8)
    record = next(r for r in engine.records[10:] if 1 in r.sampling_handles)
    record.fingerprints = record.fingerprints + np.uint64(1)
    verdict = judged(engine, 1, everybody=everybody)
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert "it came once, or depends on them" in verdict.sentence
    assert "does not hold" in detail_of(verdict, "all rows")


def test_a_capture_without_another_rows_memory_or_tokens_gives_no_window_of_all_rows():
    engine = engine_with(seed=8)
    everybody = list(engine.starts)
    assert window_of_all_rows(engine.capture([1]), 5, 12) is None
    whole = engine.capture(everybody)
    window = window_of_all_rows(whole, 5, 12)
    assert window is not None
    assert all(step.involved.all() for step in window.steps)
    late = next(r.step for r in engine.records if r.starts.max() > 20)
    assert window_of_all_rows(engine.capture(everybody, first=late), late, late + 2) is not None
    without = replace(engine.capture(everybody, first=late), histories={})
    assert window_of_all_rows(without, late, late + 2) is None


def all_rows(engine: SmallEngine):
    """The window that `judged` looks at by default, with all rows as they were."""
    capture = engine.capture(list(engine.starts), first=5)
    return lambda: window_of_all_rows(capture, 5, engine.records[-1].step)


@pytest.mark.parametrize("seed", range(3))
def test_a_right_kernel_is_never_convicted(seed: int):
    random = np.random.default_rng(seed)
    engine = SmallEngine(seed=100 + seed, blocks=26)
    engine.run(50)
    convicted: list[Verdict] = []
    for _ in range(5):
        first = int(random.integers(0, len(engine.records)))
        last = min(first + int(random.integers(0, 12)), len(engine.records) - 1)
        alive = sorted({int(h) for r in engine.records[first : last + 1] for h in r.handles})
        verdict = judged(engine, int(random.choice(alive)), first=first, last=last)
        if verdict.kind is not VerdictKind.INCONCLUSIVE:
            convicted.append(verdict)
    assert not convicted


def test_localising_prefers_a_later_decode_step_to_one_with_prefill_beside_it():
    engine = SmallEngine(SmallFault("over_read", remainder=3), seed=1)
    sequences = [engine.live[engine.submit([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 30)] for _ in range(2)]
    engine.step(sequences[:1])
    for _ in range(2):
        engine.step(sequences[:1])
    while len(engine.records) < 12:
        engine.step(sequences)
    verdict = judged(engine, 0, first=0)
    localised = next(test for test in verdict.tests if test.name == "localise")
    assert verdict.kind is VerdictKind.CODE_DEFECT
    assert "one past the end of sequence s0" in verdict.sentence
    assert localised.numbers["step"] >= verdict.step


def test_nan_that_comes_from_a_masked_read_of_unowned_memory_is_not_blamed_on_arithmetic():
    engine = engine_with(SmallFault("masked_read", layer=1), seed=5)
    executor = SmallExecutor(engine.model, engine.fault)
    window = build_window(engine.capture([1], first=6, last=15))
    record = window.steps[0].replay.record
    row = int(np.flatnonzero(window.steps[0].involved)[0])
    length = int(record.starts[row] + record.query_lengths[row])
    assert length % BLOCK
    block = int(window.steps[0].replay.block_tables[row][length // BLOCK])
    at = int(np.flatnonzero(window.image.blocks == block)[0])
    window.image.tensors["kv.value"][at, :, BLOCK - 1] = float("nan")
    verdict = Judge(executor).judge(window, finding_on("s1"))
    assert verdict.kind is VerdictKind.NAN_UNSAFE
    assert verdict.layers == (1,)
    assert block * BLOCK + BLOCK - 1 in {place.slot for place in verdict.slots}
