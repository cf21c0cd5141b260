"""Limits learnt from a replica's own rows: their false alarms, and what moves them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors.magnitude import HiddenScale, TailLimits, TailSettings, tail_limit


def learnt(values: np.ndarray, **changes: float) -> TailLimits:
    limits = TailLimits(1, TailSettings(**changes))  # type: ignore[arg-type]
    for first in range(0, len(values), 100):
        limits.learn(values[None, first : first + 100])
    return limits


def test_an_exponential_tail_passes_its_limit_less_often_than_promised():
    """The worst tail that the bound allows, at a chance that can be counted."""
    random = np.random.default_rng(0)
    passed, promised, rows = 0, 1e-4, 200_000
    for _ in range(20):
        limit = tail_limit(30 + random.exponential(2, 8192), promised)
        passed += int((30 + random.exponential(2, rows) > limit).sum())
    assert passed / (20 * rows) < promised


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_a_normal_tail_a_million_rows_long_passes_no_limit(offset):
    random = np.random.default_rng(1)
    limit = learnt(np.abs(offset + random.normal(0, 5, 8192)).astype(np.float32)).limits[0]
    assert not (np.abs(offset + random.normal(0, 5, 1_000_000)) > limit).any()


def test_nothing_is_judged_before_enough_rows_have_been_seen():
    values = np.random.default_rng(2).exponential(1, 1023).astype(np.float32)
    limits = learnt(values)
    assert np.isinf(limits.limits).all()
    limits.learn(values[None, :1])
    assert np.isfinite(limits.limits).all()


def test_one_faulty_row_in_two_hundred_does_not_hide_the_next_one():
    random = np.random.default_rng(3)
    clean = random.normal(30, 4, 8192).astype(np.float32)
    faulty = clean.copy()
    faulty[::200] = 1e38
    assert learnt(faulty).limits[0] < 1.25 * learnt(clean).limits[0]


def test_the_limits_follow_a_replica_that_changes_for_good():
    random = np.random.default_rng(4)
    limits = learnt(random.normal(30, 4, 8192).astype(np.float32))
    before = limits.limits[0]
    for _ in range(400):
        limits.learn(random.normal(90, 4, (1, 100)).astype(np.float32))
    assert before < 90 < limits.limits[0]


def test_the_same_prompt_over_and_over_leaves_room_for_another_one():
    limits = learnt(np.full(5000, 20.0, np.float32))
    assert limits.limits[0] == 30.0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=30), st.integers(0, 1000))
def test_cutting_the_rows_into_other_batches_keeps_the_same_rows(cuts, seed):
    values = np.random.default_rng(seed).exponential(3, sum(cuts) + 1).astype(np.float32)
    whole, parts = TailLimits(1, TailSettings(kept_rows=256)), TailLimits(1, TailSettings(kept_rows=256))
    whole.learn(values[None])
    first = 0
    for cut in (*cuts, 1):
        parts.learn(values[None, first : first + cut])
        first += cut
    assert sorted(parts._rows[0, : parts._known]) == sorted(whole._rows[0, : whole._known])


def test_rows_that_lack_a_reading_do_not_count_for_it():
    values = np.vstack([np.full(3000, 5.0), np.full(3000, np.nan)]).astype(np.float32)
    limits = TailLimits(2, TailSettings())
    limits.learn(values)
    assert limits.limits[0] == 7.5
    assert limits.limits[1] == np.inf


def test_an_element_of_a_hidden_state_is_read_against_its_own_usual_size():
    random = np.random.default_rng(5)
    usual = np.array([1.0, 1000.0, 0.01, 5.0])
    scale = HiddenScale()
    for _ in range(40):
        scale.read(random.normal(0, usual, (32, 4)).astype(np.float32))
    rows = np.array([[1, 1000, 0.01, 5], [16, 0, 0, 0], [0, 0, 0.16, 0], [0, 1000, 0, 0]], np.float32)
    found = scale.read(rows)
    np.testing.assert_allclose(found, [1, 16, 16, 1], rtol=0.1)


def test_infinite_and_absurd_elements_leave_the_scale_usable():
    random = np.random.default_rng(6)
    scale = HiddenScale()
    for step in range(100):
        rows = random.normal(0, 1, (16, 8)).astype(np.float32)
        if step % 10 == 0:
            rows[0, 3], rows[1, 4], rows[2, 5] = np.inf, np.nan, 1e38
        scale.read(rows)
    assert 0.8 < scale.read(np.ones((1, 8), np.float32))[0] < 1.3


def test_a_hidden_state_of_another_size_starts_the_scale_anew():
    scale = HiddenScale()
    for size in (8, 6):
        assert scale.read(np.ones((64, size), np.float32)) is None
        assert scale.read(np.ones((4, size), np.float32)) is not None
