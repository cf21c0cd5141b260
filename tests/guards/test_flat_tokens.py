"""The tokens of a step as one array."""

from __future__ import annotations

import numpy as np
import pytest

from checkengine.guards.flat import flat_tokens
from checkengine.guards.impossible_token import ImpossibleTokenGuard


def test_every_token_of_a_step_has_its_place(step_of):
    step = step_of({"a": [5, 6], "b": [], "c": [7], "d": []})
    flat = flat_tokens(step)
    assert [step.tokens[row][offset] for row, offset in map(flat.place, range(3))] == flat.tokens.tolist() == [5, 6, 7]
    assert not flat.one_each
    assert flat_tokens(step_of({"a": [5], "b": [6]})).one_each


def test_steps_one_after_another_are_not_confused(step_of):
    first, second = step_of({"a": [1]}), step_of({"a": [2]})
    assert [flat_tokens(step).tokens.tolist() for step in (first, second, first)] == [[1], [2], [1]]


def test_a_step_without_rows_is_an_empty_array(step_of):
    flat = flat_tokens(step_of({}))
    assert len(flat.tokens) == len(flat.ends) == 0


@pytest.mark.parametrize("wild", [1 << 70, -(1 << 70), 1 << 62])
def test_a_number_beyond_all_vocabularies_is_found_and_its_neighbours_are_judged(step_of, wild):
    guard = ImpossibleTokenGuard(np.array([True, True, False]))
    found = list(guard.observe(step_of({"a": [0, 1], "b": [1, wild], "c": [2], "d": [1]}, before=3)))
    assert [(each.sequence, each.token) for each in found] == [("b", 4), ("c", 3)]
