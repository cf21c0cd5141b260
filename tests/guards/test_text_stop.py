"""A stop that was not honoured, told from text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkengine.guards.finding import Severity
from checkengine.guards.text import TextStart
from checkengine.guards.text_stop import StopTextGuard


def found_in(text: str, start: TextStart, size: int = 10**6) -> list[tuple[Severity, int, object]]:
    guard = StopTextGuard(start)
    told = []
    for begin in range(0, len(text), size):
        told += guard.push(text[begin : begin + size])
    told += guard.end()
    return [(each.severity, each.at["char"], each.evidence["reason"]) for each in told]


def test_a_stop_string_in_the_text_is_an_error() -> None:
    start = TextStart("x", stops=("END", "\n\n"))
    assert found_in("one END two\n\n", start) == [(Severity.ERROR, 4, "stop_string")]
    assert found_in("one two", start) == []


def test_a_text_may_end_in_its_stop_string_where_the_request_says_so() -> None:
    start = TextStart("x", stops=("END",), stop_is_kept=True)
    assert found_in("one END", start) == []
    assert found_in("one END two", start) == [(Severity.ERROR, 4, "stop_string")]


@pytest.mark.parametrize(
    "text",
    ["Paris.<|im_end|>\n<|im_start|>user\nWhy?", "Paris.</s><s>[INST] Why?", "Paris.<|eot_id|><|start_header_id|>user"],
)
def test_a_turn_of_somebody_else_behind_an_end_marker_is_a_warning(text: str) -> None:
    assert found_in(text, TextStart("x")) == [(Severity.WARNING, 6, "next_turn")]


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("The marker <|im_end|> ends a turn.", ""),
        ("<s>struck</s> and <s>again</s>", ""),
        ("Write <|im_end|>\n<|im_start|>user then.", "How does ChatML use <|im_end|>?"),
        ("a < b and </section>", ""),
    ],
)
def test_text_about_markers_is_no_finding(text: str, prompt: str) -> None:
    assert found_in(text, TextStart("x", prompt)) == []


@given(st.integers(1, 9), st.text("aE<ND|", max_size=40))
def test_where_the_text_is_cut_changes_nothing(size: int, before: str) -> None:
    start = TextStart("x", stops=("END",))
    text = before + "END and more<|im_end|>\n<|im_start|>user"
    assert found_in(text, start, size) == found_in(text, start)
