"""Acceptance of draft tokens: the field's thresholds, and changes within a sequence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors.speculation import Acceptance, AcceptanceCounts, AcceptanceReading, change_nats


def feed(accepted: list[int], proposed: int = 3, counts: AcceptanceCounts | None = None) -> list[AcceptanceReading]:
    counts = counts or AcceptanceCounts()
    found = []
    for number in accepted:
        found += [r for _, r in counts.add(np.array([0]), np.array([proposed]), np.array([number]))]
    return found


def test_a_short_accept_length_is_told_from_128_tokens_on_and_not_before() -> None:
    found = feed([0, 0, 0, 1] * 60)
    assert found[0].kind is Acceptance.LOW
    assert found[0].tokens == 128
    assert found[0].length == pytest.approx(1.25, abs=0.02)
    assert feed([0, 0, 0, 1] * 25) == []


def test_acceptance_of_nearly_everything_is_told() -> None:
    found = feed([3] * 60)
    assert found[0].kind is Acceptance.HIGH
    assert found[0].tokens == 128
    assert found[0].rate == 1.0


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7, 0.85])
def test_ordinary_acceptance_is_not_told(rate: float) -> None:
    random = np.random.default_rng(int(rate * 100))
    counts = AcceptanceCounts()
    for _ in range(2000):
        accepted = (np.cumprod(random.random((64, 3)) < rate, axis=1)).sum(1)
        found = counts.add(np.arange(64), np.full(64, 3), accepted)
        assert [reading for _, reading in found if reading.kind in (Acceptance.HIGH, Acceptance.FALLEN)] == []
        if rate >= 0.5:
            assert found == []


def test_a_fall_behind_a_good_average_is_told_by_the_next_blocks() -> None:
    """z.ai's and vLLM's reports: 61 % falls to 1 %, and the average of the request hides it for long."""
    random = np.random.default_rng(0)
    counts = AcceptanceCounts()
    healthy = (np.cumprod(random.random((300, 3)) < 0.8, axis=1)).sum(1).tolist()
    assert feed(healthy, counts=counts) == []
    found = feed([0] * 50, counts=counts)
    assert found[0].kind is Acceptance.FALLEN
    assert found[0].length > 1.4
    assert found[0].earlier_rate > 0.5 > found[0].newest_rate


def test_a_rise_to_everything_is_told_before_the_average_shows_it() -> None:
    random = np.random.default_rng(1)
    counts = AcceptanceCounts()
    feed((np.cumprod(random.random((300, 3)) < 0.6, axis=1)).sum(1).tolist(), counts=counts)
    found = feed([3] * 50, counts=counts)
    assert found[0].kind is Acceptance.RISEN
    assert found[0].rate < 0.96


def test_a_cleared_slot_starts_anew_and_slots_grow() -> None:
    counts = AcceptanceCounts()
    counts.clear(200)
    for _ in range(40):
        counts.add(np.array([200]), np.array([3]), np.array([3]))
    counts.clear(200)
    assert counts.add(np.array([200]), np.array([3]), np.array([3])) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=300), st.integers(1, 5))
def test_a_batch_equals_its_sequences_one_by_one(accepted: list[int], others: int) -> None:
    alone = [(r.kind, r.tokens, r.accepted) for r in feed(accepted, proposed=4)]
    counts, together = AcceptanceCounts(), []
    random = np.random.default_rng(len(accepted))
    for number in accepted:
        batch = np.concatenate(([number], random.integers(0, 5, others)))
        found = counts.add(np.arange(others + 1), np.full(others + 1, 4), batch)
        together += [(r.kind, r.tokens, r.accepted) for index, r in found if index == 0]
    assert together == alone


@given(st.integers(0, 50), st.integers(0, 50))
def test_equal_rates_are_no_change_and_no_evidence_is_negative(accepted: int, other: int) -> None:
    assert change_nats(accepted, 50, accepted * 2, 100) == pytest.approx(0, abs=1e-9)
    assert change_nats(accepted, 50, other, 50) >= -1e-9
