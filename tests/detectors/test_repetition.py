"""Cycles of any period, near-copies, reuse, blank runs: when they are told; a stream is read the same however cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors import RepetitionLimits, RepetitionReading, RepetitionStreams, seq_rep_n
from checkengine.detectors.repetition import TextUnits, plain_units, readings
from checkengine.detectors.repetition.state import CODE, STREAM, UNIT_BITS, WEIGHT_BITS, WORD
from checkengine.detectors.repetition.units import describe

DRAW = random.Random(0)


def told(tokens: Sequence[int], limits: RepetitionLimits | None = None, cuts: Sequence[int] = ()):
    """Readings with the position at which each was known."""
    streams = RepetitionStreams(limits)
    slot, found, first = np.array([streams.open()]), [], 0
    for end in [*cuts, len(tokens)]:
        part = plain_units(np.array(tokens[first:end], np.int32))
        events = streams.push(slot, np.array([len(part)]), part)
        found += [(first + reading.offset, reading) for reading in readings(events)]
        first = end
    return found


def distinct(count: int, first: int = 1000) -> list[int]:
    return DRAW.sample(range(first, first + 20_000), count)


@pytest.mark.parametrize("period", [1, 2, 3, 7, 8, 13, 50, 333, 1024, 4096])
def test_a_cycle_of_any_period_is_told_within_one_period_and_16_tokens_and_never_before_24(period):
    head, unit = distinct(40), distinct(period, 30_000)
    at, reading = told(head + unit * max(3, 48 // period + 2))[0]
    repeated = at + 1 - 40 - period
    assert 24 <= repeated <= max(24, period + 16)
    assert not reading.stop


def test_a_cycle_longer_than_the_limit_is_no_cycle():
    unit = distinct(4097)
    assert told(unit * 2, RepetitionLimits(cycles_only=True)) == []


def test_a_cycle_of_words_stops_only_after_a_long_span_without_anything_new():
    found = told(distinct(30) + distinct(20, 30_000) * 40)
    stop_at, stop = found[-1]
    assert (stop.rule, stop.stop) == ("cycle", True)
    assert stop_at + 1 - 30 == RepetitionLimits().prose_span
    assert [reading.stop for _, reading in found] == [False, True]


@pytest.mark.parametrize("copies", [2, 3, 4, 7])
def test_a_few_copies_of_a_long_passage_do_not_stop_before_the_long_span(copies):
    assert not any(reading.stop for _, reading in told(distinct(30) + distinct(60, 30_000) * copies))


@pytest.mark.parametrize(("kinds", "span"), [((WORD, CODE), 512), ((CODE, CODE), 2048)])
def test_a_cycle_of_code_or_of_signs_stops_later_than_one_of_prose(kinds, span):
    cycle = np.array([(40 + at) << UNIT_BITS | kinds[at % 2] << WEIGHT_BITS | 16 for at in range(20)], np.int32)
    streams = RepetitionStreams()
    events = streams.push(np.array([streams.open()]), np.array([3000]), np.tile(cycle, 150))
    assert next(reading.offset + 1 for reading in readings(events) if reading.stop) == span


def near_loop(kind: str, period: int, rate: float, draw: np.random.Generator) -> list[int]:
    """Forty tokens, then eight copies of which each from the second on is changed anew."""
    unit = draw.integers(0, 40_000, period)
    tokens = [*draw.integers(0, 40_000, 40).tolist(), *unit.tolist()]
    for _ in range(7):
        struck = draw.random(period) < rate
        copy = np.where(struck, draw.integers(0, 40_000, period), unit)
        if kind == "inserted":
            copy = np.insert(unit, np.nonzero(struck)[0], draw.integers(0, 40_000, int(struck.sum())))
        elif kind == "left out":
            copy = unit[~struck]
        tokens += copy.tolist()
    return tokens


@pytest.mark.parametrize("period", [12, 16, 30, 100, 300])
@pytest.mark.parametrize(
    ("kind", "rate"),
    [("substituted", 0.05), ("substituted", 0.1), ("substituted", 0.2), ("inserted", 0.1), ("left out", 0.1)],
)
def test_copies_with_errors_are_told_within_three_periods_of_the_second_copy(kind, rate, period):
    draw, hits = np.random.default_rng(period), 0
    for _ in range(40):
        found = told(near_loop(kind, period, rate, draw))
        hits += bool(found) and 40 + period <= found[0][0] <= 40 + 4 * period
    # A copy of twelve tokens leaves little to go by.
    assert hits >= (36 if period > 16 else 28)


def test_copies_with_errors_stop_only_after_a_long_stretch():
    draw = np.random.default_rng(8)
    unit = draw.integers(0, 40_000, 20)
    copies = [np.where(draw.random(20) < 0.1, draw.integers(0, 40_000, 20), unit) for _ in range(80)]
    found = told(np.concatenate(copies).tolist())
    stops = [(at, reading) for at, reading in found if reading.stop]
    assert found[0][1].stop is False
    assert stops[0][1].rule in ("near_copy", "reuse")
    assert stops[0][0] + 1 >= RepetitionLimits().near_span


def test_the_items_of_a_long_list_are_never_stopped_however_much_alike():
    unit, tokens = distinct(24), []
    for item in range(100):
        tokens += [*unit[:8], 60_000 + item, *unit[8:16], 70_000 + item, *unit[16:]]
    assert not any(reading.stop for _, reading in told(tokens))


def test_collapsed_logits_stop_a_cycle_sooner_and_only_where_all_of_it_is_calm():
    unit = distinct(8)
    for entropy, expected in ((0.0, True), (0.5, False)):
        streams = RepetitionStreams()
        units = plain_units(np.array(unit * 12, np.int32))
        calm = np.full(len(units), entropy, np.float32)
        found = list(readings(streams.push(np.array([streams.open()]), np.array([len(units)]), units, calm, 0.01)))
        assert any(reading.stop for reading in found) is expected


def test_a_loop_that_ends_by_itself_is_told_as_recovered():
    found = told(distinct(30) + distinct(10, 30_000) * 6 + distinct(60, 60_000))
    assert [reading.rule for _, reading in found] == ["cycle", "recovered"]


def test_near_copies_with_a_counter_are_told_within_three_periods():
    unit, tokens = distinct(30), distinct(40, 30_000)
    for copy in range(6):
        tokens += [*unit[:10], 90_000 + copy, *unit[10:]]
    at, reading = told(tokens)[0]
    assert reading.rule in ("near_copy", "reuse")
    assert at < 40 + 31 + 3 * 31


def test_the_same_stretch_coming_back_with_gaps_is_told():
    stretch, tokens = distinct(40), []
    for number in range(6):
        tokens += stretch + distinct(12, 30_000 + 20_000 * number)
    assert told(tokens)[0][1].rule == "reuse"


def test_text_that_does_not_repeat_tells_nothing():
    assert told([DRAW.randrange(49_000) for _ in range(20_000)]) == []


def test_a_slot_that_is_used_again_knows_nothing_of_the_stream_before():
    streams, unit = RepetitionStreams(), plain_units(np.array(distinct(60), np.int32))
    slot = streams.open()
    streams.push(np.array([slot]), np.array([60]), unit)
    streams.close(slot)
    again = streams.open()
    assert again == slot
    assert len(streams.push(np.array([again]), np.array([60]), unit)) == 0


def test_a_stream_keeps_64_kib_at_most():
    assert STREAM.itemsize <= 64 * 1024


def test_streams_of_one_call_do_not_mix():
    streams = RepetitionStreams()
    slots = np.array([streams.open() for _ in range(3)])
    loop, other = distinct(10) * 8, distinct(80, 30_000)
    found = []
    for one, two in zip(loop, other, strict=True):
        units = plain_units(np.array([two, one, two], np.int32))
        found += [reading.row for reading in readings(streams.push(slots, np.array([1, 2, 3]), units))]
    assert set(found) == {1}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_cutting_a_stream_into_other_calls_changes_nothing(tokens, cuts):
    cuts = sorted(cut for cut in cuts if cut <= len(tokens))
    assert told(tokens, cuts=cuts) == told(tokens)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=30, max_size=160))
def test_a_cycle_that_is_told_is_one_token_by_token(tokens):
    for at, reading in told(tokens, RepetitionLimits(cycles_only=True)):
        if reading.rule == "cycle":
            span = tokens[at + 1 - reading.span : at + 1]
            assert all(a == b for a, b in zip(span, span[reading.period :], strict=False))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_splitting_a_text_anywhere_gives_the_same_units(text, cuts):
    def units(pieces: Sequence[str]) -> list[int]:
        reader = TextUnits()
        return [int(unit) for piece in pieces for unit in reader.push(piece)] + [int(unit) for unit in reader.end()]

    bounds = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    pieces = [text[first:end] for first, end in pairwise(bounds)]
    assert units(pieces) == units([text])


@pytest.mark.parametrize("text", ["\ud800", "\0" * 50, "e\u0301", "\u200b\u2060", "👩\u200d👩\u200d👧"])
def test_any_character_has_a_kind_and_a_weight(text):
    kind, weight = describe(text)
    assert 0 <= kind < 8
    assert 0 < weight < 64


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="longest_period is 5000"):
        RepetitionLimits(longest_period=5000)
    with pytest.raises(ValueError, match="at least 2 copies"):
        replace(RepetitionLimits(), copies=1)


def test_seq_rep_n_is_the_share_of_n_grams_seen_before():
    assert seq_rep_n([1, 2, 3, 4, 5]) == 0.0
    assert seq_rep_n([1] * 13) == pytest.approx(0.9)
    assert seq_rep_n([1, 2], 4) == 0.0
    assert seq_rep_n([1, 2, 1, 2, 1], 2) == pytest.approx(0.5)


def test_a_reading_tells_its_copies():
    assert RepetitionReading(0, 0, "cycle", False, 10, 35, 0, 0.0).copies == 3.5
