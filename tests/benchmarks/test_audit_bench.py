"""A slice of the audit's simulation, and a short soak of a fault that is not so rare."""

from __future__ import annotations

import numpy as np
import pytest

from checkengine.benchmarks.audit_cost import Costs, Line
from checkengine.benchmarks.audit_simulation import convicted_within_a_day, median_hours, simulate
from checkengine.benchmarks.audit_soak import soak
from checkengine.benchmarks.audit_traffic import Load, Traffic
from checkengine.benchmarks.rescore import auc, found_at

COSTS = Costs(Line(0.16, 0.0019), Line(0.2, 0.0018), 0, 0)
"""Of the demo model with 16 rows, measured; seconds."""


def test_a_stratified_audit_meets_a_fault_at_page_starts_far_sooner_than_a_uniform_one() -> None:
    found = simulate(COSTS, 0.5, 2, Load(), steps=2000)
    assert found.stratified > 2 * found.uniform > 0
    assert found.cpu_share < 0.55
    assert median_hours(found, found.stratified) < 0.5 * median_hours(found, found.uniform)
    assert convicted_within_a_day(found, found.stratified) > 0.99


def test_simulated_traffic_computes_every_position_once() -> None:
    ends: dict[int, int] = {}
    resumed = 0
    for record in Traffic(Load(rows=4, preemptions=0.01), seed=1).records(800):
        for handle, start, count in zip(
            record.handles.tolist(), record.starts.tolist(), record.query_lengths.tolist(), strict=True
        ):
            resumed += handle in ends and start == 0
            assert handle not in ends or start in (0, ends[handle])
            ends[handle] = start + count
    assert resumed > 0
    assert len(ends) > 4


def test_a_soak_convicts_the_step_in_which_the_fault_struck() -> None:
    found = soak(rate=0.3, most_seconds=60.0)
    assert found.convicted
    assert found.wrongly == 0
    assert found.struck > 0


def test_a_soak_without_a_fault_convicts_nobody() -> None:
    found = soak(rate=0.0, most_steps=300)
    assert (found.convicted, found.struck) == (False, 0)
    assert found.audits > 0


def test_auc_and_found_at_are_those_of_their_definitions() -> None:
    bad, good = np.array([3.0, 2.0, 1.0]), np.array([1.0, 0.0])
    assert auc(bad, good) == pytest.approx(5.5 / 6)
    assert found_at(bad, good) == pytest.approx(2 / 3)
