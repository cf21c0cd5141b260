"""Cycles at the tail of a token stream."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors import Cycle, CycleDetector, CycleLimits, seq_rep_n

LIMITS = CycleLimits(minimum_copies=3, minimum_span=24, short_period=0, short_span=24, longest_period=64)


def readings(tokens: Sequence[int], limits: CycleLimits = LIMITS, words: Sequence[bool] | None = None):
    detector = CycleDetector(limits, words)
    return [detector.push(token) for token in tokens]


def span_of(tokens: Sequence[int], period: int) -> int:
    """Brute force: how many tokens at the end repeat with this period."""
    span = period
    while span < len(tokens) and tokens[-span - 1] == tokens[-span - 1 + period]:
        span += 1
    return min(span, len(tokens))


def brute_force(tokens: Sequence[int], limits: CycleLimits = LIMITS) -> bool:
    return any(
        span_of(tokens, p) >= max(limits.minimum_span, limits.minimum_copies * p)
        for p in range(1, limits.longest_period + 1)
        if p < len(tokens)
    )


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_cycle_is_found_when_brute_force_finds_it_and_never_otherwise(data):
    alphabet = data.draw(st.sampled_from([2, 3, 10, 50_000]))
    token = st.integers(0, alphabet - 1)
    prefix = data.draw(st.lists(token, max_size=80))
    unit = data.draw(st.lists(token, min_size=1, max_size=64))
    tokens = prefix + unit * (3 + -(-48 // len(unit)))
    found = readings(tokens)
    for length, reading in enumerate(found, 1):
        if reading is not None:
            assert span_of(tokens[:length], reading.period) >= reading.span_tokens
            assert reading.span_tokens >= LIMITS.minimum_span
            assert reading.start + reading.span_tokens == length
            assert brute_force(tokens[:length])
    expected = next(length for length in range(1, len(tokens) + 1) if brute_force(tokens[:length]))
    first = next((length for length, reading in enumerate(found, 1) if reading is not None), None)
    assert first is not None
    # Two-letter streams hold accidental short cycles that hide the long one for a while.
    assert first <= expected + (2 * len(unit) + 24 if alphabet < 50_000 else 8)


@pytest.mark.parametrize("period", [1, 2, 3, 5, 16, 17, 100, 300, 512])
def test_each_period_is_reported_with_its_true_length_and_start(period):
    limits = CycleLimits(short_period=0)
    tokens = [10_000 + i for i in range(37)] + [i % period for i in range(4 * max(period, 40))]
    first = next((i, r) for i, r in enumerate(readings(tokens, limits)) if r is not None)
    at, cycle = first
    assert (cycle.period, cycle.start) == (period, 37)
    assert at + 1 == 37 + max(limits.minimum_span, limits.minimum_copies * period)
    assert cycle.copies == pytest.approx(cycle.span_tokens / period)


def test_a_period_beyond_the_longest_is_not_a_cycle():
    tokens = [i % 513 for i in range(513 * 5)]
    assert not any(readings(tokens, CycleLimits()))


def test_the_cycle_ends_with_the_first_other_token_and_a_new_one_is_found():
    limits = CycleLimits(short_period=0)
    found = readings([1, 2, 3] * 30 + [9] + [4, 5, 6, 7] * 30, limits)
    assert found[89] is not None
    assert found[90] is None
    assert found[-1] == Cycle(4, 30.0, 120, 91)


def test_a_cycle_inside_a_cycle_is_followed_to_the_outer_one():
    unit = [7] * 20 + [8] * 3 + [9]
    found = readings(unit * 8, CycleLimits(short_period=0))
    assert found[-1] is not None
    assert found[-1].period == len(unit)


def test_short_periods_of_signs_need_a_longer_span_than_those_of_words():
    words = [False] * 10 + [True] * 10
    dashes, word = [3] * 127, [13] * 127
    assert not any(readings(dashes, CycleLimits(), words))
    assert readings([*dashes, 3], CycleLimits(), words)[-1] is not None
    first = next(i for i, r in enumerate(readings(word, CycleLimits(), words), 1) if r is not None)
    assert first == CycleLimits().minimum_span


def test_memory_stays_bounded_over_a_long_stream_and_positions_stay_true():
    detector = CycleDetector()
    for token in range(20_000):
        detector.push(token % 7919)
    size = sum(sys.getsizeof(getattr(detector, slot)) for slot in ("_ring", "_slots"))
    assert size <= 64 * 1024
    last = None
    for i in range(300):
        last = detector.push(90_000 + i % 10)
    assert last == Cycle(10, 30.0, 300, 20_000)


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="minimum_copies >= 2"):
        CycleDetector(CycleLimits(minimum_copies=1))


def test_seq_rep_n_is_the_share_of_n_grams_seen_before():
    assert seq_rep_n([1, 2, 3, 4, 5]) == 0.0
    assert seq_rep_n([1] * 13) == pytest.approx(0.9)
    assert seq_rep_n([1, 2], 4) == 0.0
    assert seq_rep_n([1, 2, 1, 2, 1], 2) == pytest.approx(0.5)
