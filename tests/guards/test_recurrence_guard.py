"""Divergence of a looped block becomes a finding on its sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from checkengine.detectors.recurrence import LoopNorms
from checkengine.guards.recurrence import RecurrenceGuard
from checkengine.guards.settings import RecurrenceSettings
from checkengine.guards.step import StepView


def norms(*radii: float, loops: int = 12) -> LoopNorms:
    change = np.array(radii, np.float32) ** np.arange(loops, dtype=np.float32)[:, None]
    return LoopNorms(np.ones_like(change) * 10 + change, change)


def test_the_sequence_whose_state_blows_up_is_named_once(step_of: Callable[..., StepView]) -> None:
    guard = RecurrenceGuard(RecurrenceSettings())
    view = replace(step_of({"calm": [1], "wild": [2]}, before=5), loops=norms(0.9, 1.2))
    (finding,) = guard.observe(view)
    assert (finding.kind, finding.sequence, finding.token) == ("recurrence.divergence", "wild", 5)
    assert abs(finding.evidence["radius"] - 1.2) < 0.01
    assert list(guard.observe(view)) == []
    guard.forget("wild")
    assert len(list(guard.observe(view))) == 1


def test_a_state_that_is_not_finite_is_evidence_without_infinities(step_of: Callable[..., StepView]) -> None:
    broken = norms(1.0)
    broken.hidden[3:] = np.nan
    (finding,) = RecurrenceGuard(RecurrenceSettings()).observe(replace(step_of({"a": [1]}), loops=broken))
    assert dict(finding.evidence) == {"loop": 3, "finite": False}


def test_a_model_without_loops_costs_nothing(step_of: Callable[..., StepView]) -> None:
    assert list(RecurrenceGuard(RecurrenceSettings()).observe(step_of({"a": [1]}))) == []
