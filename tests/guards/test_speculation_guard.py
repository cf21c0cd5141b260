"""Speculative acceptance becomes findings: corrupt state may stop, easy text only warns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from checkengine.guards.finding import Finding, Severity
from checkengine.guards.settings import SpeculationSettings
from checkengine.guards.speculation import SpeculationGuard
from checkengine.guards.step import SequenceStart, StepView

StepOf = Callable[..., StepView]


def run(guard: SpeculationGuard, step_of: StepOf, accepted: Sequence[int], proposed: int = 3) -> list[Finding]:
    found: list[Finding] = []
    before = 0
    for number in accepted:
        view = step_of({"a": [5] * (number + 1)}, before=before)
        counts = {"proposed": np.array([proposed], np.int32), "accepted": np.array([number], np.int32)}
        found += guard.observe(replace(view, **counts))
        before += number + 1
    return found


def test_low_acceptance_is_an_error_and_high_acceptance_a_warning_each_told_once(step_of: StepOf) -> None:
    guard = SpeculationGuard(SpeculationSettings())
    guard.begin(SequenceStart(0, "a"))
    high = run(guard, step_of, [3] * 80)
    assert [(finding.kind, finding.severity) for finding in high] == [("speculation.acceptance", Severity.WARNING)]
    assert high[0].evidence["accept_rate"] == 1.0
    low = run(guard, step_of, [0] * 800)
    assert [finding.severity for finding in low] == [Severity.ERROR]
    assert low[0].evidence["newest_rate"] == 0.0


def test_steps_without_drafts_and_impossible_counts_are_passed_over(step_of: StepOf) -> None:
    guard = SpeculationGuard(SpeculationSettings())
    assert list(guard.observe(step_of({"a": [1]}))) == []
    assert run(guard, step_of, [0] * 200, proposed=0) == []
    assert run(guard, step_of, [4] * 200, proposed=3) == []
    assert guard._slots == {}


def test_a_forgotten_sequence_leaves_nothing_behind(step_of: StepOf) -> None:
    guard = SpeculationGuard(SpeculationSettings())
    for _ in range(3):
        guard.begin(SequenceStart(0, "a"))
        assert len(run(guard, step_of, [0] * 200)) == 1
        guard.forget("a")
    assert guard._slots == {}
    assert guard._reported == {}


def test_n_gram_drafts_are_let_be_where_the_length_is_set_to_one(step_of: StepOf) -> None:
    guard = SpeculationGuard(SpeculationSettings(least_length=1.0))
    assert run(guard, step_of, [0] * 400) == []
