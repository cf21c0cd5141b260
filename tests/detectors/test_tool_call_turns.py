"""Loops of tool calls across turns, told from work that repeats itself for good reasons."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.benchmarks.detectors.tool_call_loops import LOOPING
from checkengine.benchmarks.detectors.tool_call_taxonomy import LOOPS, WORK, taxonomy
from checkengine.benchmarks.detectors.tool_call_work import WORKING
from checkengine.detectors.tool_calls import TurnLoops, TurnReading, turns_of

QUESTION = {"role": "user", "content": "Please do it."}


def messages_of(calls):
    """A call a turn; SAY and USER stand for what an assistant or a user says."""
    messages = [QUESTION]
    for number, call in enumerate(calls):
        if call[0] in ("SAY", "USER"):
            messages.append({"role": "assistant" if call[0] == "SAY" else "user", "content": call[1]})
            continue
        name, arguments, result = call
        made = {"id": f"c{number}", "function": {"name": name, "arguments": json.dumps(arguments)}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        if result is not None:
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return messages


def read(calls) -> list[TurnReading]:
    return list(TurnLoops().read(turns_of(messages_of(calls))))


def alarms(calls) -> list[TurnReading]:
    return [reading for reading in read(calls) if reading.certain]


@pytest.mark.parametrize("name", LOOPING)
def test_a_loop_is_found(name):
    assert len(alarms(LOOPING[name])) == 1


@pytest.mark.parametrize("name", WORKING)
def test_work_that_repeats_itself_is_no_loop(name):
    assert read(WORKING[name]) == []


SEARCH = ("search", {"query": "tides"}, "Two pages: one on tides, one on moons.")


def nth_call(reading: TurnReading) -> int:
    """Each call has a message of its own and a result behind it."""
    return (reading.message + 1) // 2


def test_the_third_identical_call_warns_and_the_fourth_with_the_same_result_alarms():
    readings = read([SEARCH] * 8)
    assert [(nth_call(r), r.certain, r.rule) for r in readings] == [(3, False, "identical"), (4, True, "identical")]


def test_the_third_identical_call_warns_before_its_result_is_there():
    messages = messages_of([SEARCH] * 3)[:-1]
    assert [r.certain for r in TurnLoops().read(turns_of(messages))] == [False]


@pytest.mark.parametrize("period", range(2, 7))
def test_a_cycle_is_found_by_its_third_round(period):
    cycle = [(f"tool_{n}", {"n": n}, f"result {n}") for n in range(period)]
    (reading,) = alarms(cycle * 5)
    assert (nth_call(reading), reading.period, reading.rule) == (3 * period, period, "cycle")


def test_a_call_between_others_is_found_by_its_fourth_time():
    calls = [call for n in range(8) for call in (SEARCH, ("get_weather", {"city": n}, f"{n} degrees"))]
    (reading,) = alarms(calls)
    assert (nth_call(reading), reading.count, reading.rule) == (7, 4, "interleaved")


def test_results_that_change_are_progress():
    assert read([("search", {"query": "tides"}, f"Now there are {n} pages on tides.") for n in range(20)]) == []


def test_a_successful_change_in_between_begins_anew():
    calls = [call for n in range(9) for call in (SEARCH, ("edit_file", {"path": "a", "text": str(n)}, "saved"))]
    assert read(calls) == []


def test_a_change_that_fails_changes_nothing():
    calls = [
        call for n in range(9) for call in (SEARCH, ("edit_file", {"path": "a", "text": str(n)}, "Error: no such file"))
    ]
    assert [r.rule for r in alarms(calls)] == ["interleaved"]


def test_a_users_words_begin_anew():
    calls = [call for n in range(6) for call in (SEARCH, SEARCH, ("SAY", "Here."), ("USER", f"And {n}?"))]
    assert read(calls) == []


def test_a_harness_that_pushes_the_same_words_between_calls_is_no_user():
    calls = [call for _ in range(6) for call in (SEARCH, ("USER", "Continue."))]
    assert [r.rule for r in alarms(calls)] == ["identical"]


def test_calls_made_side_by_side_are_one_look():
    calls = [{"id": f"c{n}", "function": {"name": "search", "arguments": '{"query": "tides"}'}} for n in range(5)]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": "Two pages."} for n in range(5)]
    messages = [QUESTION, {"role": "assistant", "tool_calls": calls}, *results]
    assert list(TurnLoops().read(turns_of(messages))) == []


def test_a_service_that_is_never_reached_is_told_of_after_a_long_while():
    readings = read([("fetch", {"url": "u"}, "503 Service Unavailable")] * 30)
    assert [(r.rule, r.certain, r.count) for r in readings] == [("retries", False, 25)]


def test_key_order_and_white_space_of_arguments_do_not_hide_a_loop():
    texts = ['{"a": 1, "b": "x"}', '{"b":"x","a":1}', '{\n "a": 1,\n "b": "x"\n}', '{"b": "x",  "a": 1}']
    messages = [QUESTION]
    for text in texts:
        messages += [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": text}}]},
            {"role": "tool", "content": "the same"},
        ]
    assert [r.certain for r in TurnLoops().read(turns_of(messages))] == [False, True]


def test_a_long_result_with_a_clock_at_its_foot_is_the_same_result():
    page = "\n".join(f"{n}: a line of the page" for n in range(2000))
    calls = [("fetch", {"url": "u"}, f"{page}\n\nTook {7**n} ms, request id {n:08x}-a{n}") for n in range(5)]
    assert [r.rule for r in alarms(calls)] == ["identical"]


def test_a_long_result_that_changes_in_its_middle_is_another_one():
    page = [f"{n}: a line of the page" for n in range(2000)]
    calls = [("fetch", {"url": "u"}, "\n".join([*page[:1000], f"news {n}", *page[1000:]])) for n in range(5)]
    assert read(calls) == []


MIXED = st.lists(
    st.sampled_from(
        [
            SEARCH,
            ("search", {"query": "moons"}, "Nothing found."),
            ("get_job", {"id": 1}, '{"status": "running"}'),
            ("edit_file", {"path": "a", "text": "b"}, "ok"),
            ("date", {}, "Mon Nov 30 15:12:45 UTC 2026"),
            ("date", {}, "Mon Nov 30 15:13:45 UTC 2026"),
            ("fetch", {"u": 1}, None),
            ("SAY", "So."),
            ("USER", "Go on."),
        ]
    ),
    max_size=24,
)


@settings(max_examples=150, deadline=None)
@given(MIXED)
def test_a_conversation_grown_by_a_message_gives_the_same_readings_and_more(calls):
    messages = messages_of(calls)
    grown = [list(TurnLoops().read(turns_of(messages[:end]))) for end in range(1, len(messages) + 1)]
    for before, after in pairwise(grown):
        assert after[: len(before)] == before


def test_the_state_of_a_conversation_is_bounded():
    loops = TurnLoops()
    calls = [("search", {"query": f"q{n} " * 50}, f"result {n} " * 2000) for n in range(500)]
    assert list(loops.read(turns_of(messages_of(calls)))) == []
    assert len(loops._events) <= 48
    assert len(loops._results._results) <= 64


def test_the_taxonomy_has_every_kind_and_is_the_same_for_a_seed():
    first, again = (list(taxonomy(11, loops=1, work=1)) for _ in range(2))
    assert [case.messages for case in first] == [case.messages for case in again]
    assert {case.kind for case in first} == {make.__name__ for make in (*LOOPS, *WORK)}


def test_recall_and_precision_on_a_small_taxonomy():
    caught = missed = false = 0
    for case in taxonomy(5, loops=6, work=4):
        found = any(reading.certain for reading in TurnLoops().read(turns_of(case.messages)))
        caught, missed, false = (
            caught + (found and case.loops),
            missed + (case.loops and not found),
            false + (found and not case.loops),
        )
    assert caught / (caught + missed) >= 0.95
    assert caught / (caught + false) >= 0.98
