"""The small language of armed conditions: read, never run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.engine_shim.arming import MOST_ARMED, Armings
from checkengine.engine_shim.condition import FIELDS, MOST_CHARACTERS, Condition, ConditionError

COLUMNS = {
    "kind": np.array(["", "text.salad", "", "language.switch"], object),
    "guard": np.array(["", "salad", "", "language"], object),
    "request": np.array(["a", "b", "c", ""], object),
    "length": np.array([15, 16, 17, 33], np.int32),
    "tokens": np.array([1, 1, 8, 1], np.int32),
    "step": np.full(4, 7),
    "batch": np.full(4, 4),
    "entropy": np.array([0.5, np.nan, 3.0, 8.0]),
    "margin": np.array([1.0, 0.01, np.nan, 0.5]),
    "prefix_hit": np.array([False, False, True, False]),
}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("length % 16 == 1", [2, 3]),
        ("length % 16 == 1 and not prefix_hit", [3]),
        ("16 <= length < 33", [1, 2]),
        ("entropy > 1", [2, 3]),
        ("not entropy > 1", [0]),
        ("entropy != 1 and margin != 1", [3]),
        ('kind in ("text.salad", "drift")', [1]),
        ('kind not in ["", "text.salad"]', [3]),
        ('request == "b" or tokens >= 8', [1, 2]),
        ("length - tokens == 14", [0]),
        ("length + -tokens == 15 + step - step", [1]),
        ("prefix_hit", [2]),
        ("prefix_hit == False and batch == 4 and step == 7", [0, 1, 3]),
        ("  True  ", [0, 1, 2, 3]),
    ],
)
def test_a_condition_chooses_the_rows_that_meet_it(text: str, rows: list[int]) -> None:
    """A row of which a named number is not known is never chosen."""
    assert np.flatnonzero(Condition.parse(text).rows(COLUMNS, 4)).tolist() == rows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "length",
        "length = 1",
        "__import__('os').system('true') == 0",
        "().__class__ == 1",
        "length.real == 1",
        "kind[0] == 'a'",
        "[x for x in (1, 2)] == 1",
        "(lambda: 1)() == 1",
        "f'{kind}' == 'a'",
        "(kind := 'a') == 'a'",
        "length ** 2 == 4",
        "length * 2 == 4",
        "length % 0 == 1",
        "length % -3 == 1",
        "length % length == 1",
        "length == 1e400",
        "length == 10000000000000000000000000000",
        "length == 'a'",
        "kind < 'a'",
        "kind + 'a' == 'b'",
        "length in step",
        "length in ()",
        "length in (1, step)",
        "length is 1",
        "length == None",
        "length == 1j",
        "kind == b'a'",
        "nothing == 1",
        "length == 1; step == 1",
        "length if prefix_hit else step",
        "print(1)",
        "not " * 60 + "prefix_hit",
        "(" * 220 + "prefix_hit" + ")" * 220,
        "1==1 or " * 40 + "prefix_hit",
        "x" * (MOST_CHARACTERS + 1),
        "length == 1\x00",
    ],
)
def test_whatever_else_python_knows_is_refused_with_one_line(text: str) -> None:
    with pytest.raises(ConditionError) as caught:
        Condition.parse(text)
    assert "\n" not in str(caught.value)


WORDS = [
    *FIELDS,
    "and",
    "or",
    "not",
    "in",
    "==",
    "<",
    ">=",
    "%",
    "-",
    "(",
    ")",
    "1",
    "16",
    '"a"',
    ",",
    "0.5",
    "is",
    ".",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14))
def test_any_row_of_words_is_a_condition_or_an_error_of_ours(words: list[str]) -> None:
    try:
        condition = Condition.parse(" ".join(words))
    except ConditionError:
        return
    assert condition.rows(COLUMNS, 4).shape == (4,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"level": "L9"}, "no level"),
        ({"seconds": 0.0}, "seven days"),
        ({"seconds": float("nan")}, "seven days"),
        ({"seconds": 1e9}, "seven days"),
        ({"most": 0}, "1 to"),
        ({"most": 10**6}, "1 to"),
    ],
)
def test_what_is_armed_has_an_end(changes: dict[str, object], words: str) -> None:
    given_ = {"level": "L3", "seconds": 60.0, "most": 1, "now": 0.0} | changes
    with pytest.raises(ConditionError, match=words):
        Armings().made("prefix_hit", **given_)  # type: ignore[arg-type]


def test_only_a_few_conditions_are_armed_at_a_time_and_those_that_are_over_make_room() -> None:
    armings = Armings()
    for number in range(MOST_ARMED):
        made = armings.made("prefix_hit", level="L1", seconds=10.0 + number, most=1, now=0.0)
        armings.add(made, 0.0)
    with pytest.raises(ConditionError, match="disarm one first"):
        armings.made("prefix_hit", level="L1", seconds=1.0, most=1, now=9.0)
    armings.add(armings.made("prefix_hit", level="L1", seconds=1.0, most=1, now=10.0), 10.0)
    assert len(armings.active(10.0)) == MOST_ARMED
    assert armings.active(100.0) == ()
