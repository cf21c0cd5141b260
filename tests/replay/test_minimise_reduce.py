"""The searches behind the minimiser."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.replay.minimise.budget import Budget, OutOfBudget
from checkengine.replay.minimise.reduce import keep_least, least_number

ITEMS = list(range(64))


class Asked:
    """Counts questions; shows where all of `needed` are there."""

    def __init__(self, needed: set[int]) -> None:
        self.needed, self.times = needed, 0

    def __call__(self, items: list[int]) -> bool:
        self.times += 1
        return self.needed <= set(items)


def test_where_nothing_is_needed_one_question_is_enough() -> None:
    asked = Asked(set())
    assert keep_least(ITEMS, [1] * 64, asked) == []
    assert asked.times == 1


def test_one_needed_item_of_64_is_found_in_few_questions() -> None:
    for needed in range(64):
        asked = Asked({needed})
        assert keep_least(ITEMS, [1] * 64, asked) == [needed]
        assert asked.times <= 32


@given(st.sets(st.integers(0, 39), max_size=6), st.lists(st.integers(1, 2000), min_size=40, max_size=40))
@settings(max_examples=60, deadline=None)
def test_what_is_kept_is_what_is_needed_whatever_the_weights(needed: set[int], weights: list[int]) -> None:
    assert keep_least(list(range(40)), weights, Asked(needed)) == sorted(needed)


@given(st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=4), min_size=1, max_size=4))
@settings(max_examples=80, deadline=None)
def test_no_single_item_of_a_result_can_go_even_where_several_answers_exist(ways: list[set[int]]) -> None:
    def shows(items: list[int]) -> bool:
        return any(way <= set(items) for way in ways)

    kept = keep_least(list(range(12)), [1] * 12, shows)
    assert shows(kept)
    assert not any(shows([other for other in kept if other != item]) for item in kept)


def test_a_fault_that_needs_an_even_number_of_rows_ends_with_rows_of_which_none_can_go() -> None:
    def shows(items: list[int]) -> bool:
        return 7 in items and len(items) % 2 == 0

    kept = keep_least(ITEMS, [1] * 64, shows)
    assert shows(kept)
    assert not any(shows([other for other in kept if other != item]) for item in kept)


def test_the_heavier_rows_go_first() -> None:
    # Either of the two is enough: the light one stays.
    kept = keep_least([0, 1], [2000, 3], lambda items: bool(items))
    assert kept == [1]


def test_the_least_number_is_found_by_halving() -> None:
    asked: list[int] = []

    def accept(number: int) -> bool:
        asked.append(number)
        return number >= 1501

    assert least_number(1, 2048, accept) == 1501
    assert len(asked) <= 11


def test_a_budget_ends_a_search_and_not_one_run_later() -> None:
    budget = Budget(2)
    budget.take()
    budget.take()
    with pytest.raises(OutOfBudget):
        budget.take()
    assert budget.used == 2
