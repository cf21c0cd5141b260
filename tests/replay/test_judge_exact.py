"""What must not matter at equal shape: places of pages, contents of neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_engine import SmallEngine, SmallExecutor, SmallFault

from checkengine.guards.finding import Finding, Severity
from checkengine.replay.executor import ReplayStep, StepOutput
from checkengine.replay.judge.invariance import permuted
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.rules_out import RULES_OUT
from checkengine.replay.judge.shape import alone
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.playback import Playback, all_bits
from checkengine.replay.windows import build_window

Depends = Callable[[ReplayStep, int], int]
"""Something that a row's bits depend on and should not: (step, row)."""


class Depending(SmallExecutor):
    """Bits of layer 1 depend on `depends` besides what they should."""

    row_independent = True

    def __init__(self, engine: SmallEngine, depends: Depends) -> None:
        super().__init__(engine.model, SmallFault())
        self.depends = depends

    def run(self, step: ReplayStep, memory: Any, *, kernel: str | None = None, hashes: bool = False) -> StepOutput:
        output = super().run(step, memory, kernel=kernel, hashes=hashes)
        output.hashes = [
            replace(entry, fingerprint=entry.fingerprint ^ self.depends(step, entry.row)) if entry.layer == 1 else entry
            for entry in output.hashes
        ]
        return output


def on_nothing(step: ReplayStep, row: int) -> int:
    return 0


def on_place(step: ReplayStep, row: int) -> int:
    return int(step.block_tables[row][0])


def on_neighbours(step: ReplayStep, row: int) -> int:
    ends = np.cumsum(step.record.query_lengths)
    own = np.arange(len(step.record.token_ids))
    theirs = (own < ends[row] - step.record.query_lengths[row]) | (own >= ends[row])
    return int(step.record.token_ids[theirs].sum())


def judged(depends: Depends) -> Verdict:
    engine = SmallEngine(seed=7)
    engine.run(24)
    finding = Finding("language.switch", "s1", Severity.WARNING, 12, 0, "test")
    window = build_window(engine.capture([1], first=6, last=14, findings=(finding,)))
    return Judge(Depending(engine, depends)).judge(window, finding)


def test_a_kernel_that_depends_on_where_its_pages_lie_is_convicted() -> None:
    verdict = judged(on_place)
    assert (verdict.kind, verdict.fault_class) == (VerdictKind.CODE_DEFECT, "depends on physical placement")
    assert "layer 1" in verdict.sentence


def test_a_row_that_depends_on_its_neighbours_is_convicted() -> None:
    verdict = judged(on_neighbours)
    assert (verdict.kind, verdict.fault_class) == (VerdictKind.CODE_DEFECT, "rows mixed up")


def test_a_right_kernel_passes_both_and_the_verdict_says_what_that_rules_out() -> None:
    verdict = judged(on_nothing)
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    by_name = {test.name: test for test in verdict.tests}
    for name in ("placement", "neighbours", "repeat", "fills", "finite"):
        assert by_name[name].passed, name
        assert by_name[name].rules_out == RULES_OUT[name, True]
    assert verdict.to_dict()["tests"][0]["rules_out"]


@pytest.mark.parametrize("seed", range(3))
def test_pages_in_other_places_give_the_same_bits_where_blocks_are_shared_and_reused(seed: int) -> None:
    engine = SmallEngine(seed=20 + seed, blocks=26)
    engine.run(40)
    window = build_window(engine.capture([1, 2], first=8, last=24))
    moved = permuted(window, np.random.default_rng(seed))
    assert any(not np.array_equal(a.read, b.read) for a, b in zip(moved.steps, window.steps, strict=True))
    executor = SmallExecutor(engine.model, engine.fault)
    plain, other = Playback(executor, window, hashes=True), Playback(executor, moved, hashes=True)
    for step, twin in zip(window.steps, moved.steps, strict=True):
        assert all_bits(step, plain.run(step)) == all_bits(twin, other.run(twin))


def test_a_step_without_its_neighbours_keeps_its_own_rows_as_they_were() -> None:
    engine = SmallEngine(seed=9)
    engine.run(30)
    window = build_window(engine.capture([1], first=6, last=16))
    step = next(step for step in window.steps if step.involved.any() and not step.involved.all())
    small = alone(step)
    row = int(np.flatnonzero(step.involved)[0])
    assert small.replay.record.handles.tolist() == [1]
    assert small.involved.all()
    assert np.array_equal(small.replay.block_tables[0], step.replay.block_tables[row])
    assert len(small.replay.record.token_ids) == int(step.replay.record.query_lengths[row])
