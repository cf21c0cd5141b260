"""Broken logits, read from the logprobs beside a completion."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkengine.guards.finding import Severity
from checkengine.guards.settings import UniformSettings
from checkengine.guards.text import TextStart
from checkengine.guards.text_logprobs import LogprobsGuard

NAN, FLAT = float("nan"), -math.log(49152)


def read(logprobs):
    found = LogprobsGuard(TextStart("a"), UniformSettings()).read(logprobs)
    return [(each.kind, each.severity, each.at["token"], each.evidence["bad_tokens"]) for each in found]


def chat(*rows):
    """Each row: the chosen logprob, then its alternatives."""
    return {
        "content": [
            {"token": "x", "logprob": chosen, "top_logprobs": [{"token": "y", "logprob": each} for each in others]}
            for chosen, *others in rows
        ]
    }


def older(chosen, alternatives=None):
    top = [{str(n): each for n, each in enumerate(row)} for row in alternatives] if alternatives else None
    return {"tokens": ["x"] * len(chosen), "token_logprobs": chosen, "top_logprobs": top}


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf, 0.5, 10**400])
def test_a_chosen_logprob_that_no_probability_has_is_an_error_at_its_token(value):
    expected = [("logits.nonfinite", Severity.ERROR, 2, 1)]
    assert read(chat([-0.1], [0.0], [value], [-3.0])) == expected
    assert read(older([-0.1, 0.0, value, -3.0])) == expected


def test_a_missing_logprob_is_a_warning_since_json_writers_make_it_of_nan():
    assert read(older([-0.1, None, None])) == [("logits.nonfinite", Severity.WARNING, 1, 2)]


def test_the_first_token_of_an_echoed_prompt_has_none_and_that_is_no_fault():
    assert read(older([None, -0.2, -1.0])) == []


def test_a_row_whose_alternatives_are_all_alike_and_improbable_is_uniform():
    assert read(chat([-1.0, -1.0, -2.0], [FLAT, FLAT, FLAT, FLAT])) == [("logits.uniform", Severity.ERROR, 1, 1)]
    assert read(older([FLAT], [[FLAT, FLAT + 5e-4]])) == [("logits.uniform", Severity.ERROR, 0, 1)]


@pytest.mark.parametrize(
    "rows",
    [
        [[-0.7, -0.7, -0.7]],  # a coin toss
        [[-2.3] * 11],  # ten digits alike
        [[-9.0, -0.1, -9.0]],  # an improbable draw
        [[FLAT, FLAT]],  # one alternative tells nothing
        [[-9999.0, -9999.0, -9999.0]],  # a server's "too low to say"
        [[0.0, 0.0, -math.inf]],  # a grammar's mask among the alternatives
        [[-9.0, -9.0, -9.4, -9.9]],  # flat, and still a distribution
    ],
)
def test_healthy_rows_are_no_finding(rows):
    assert read(chat(*rows)) == []


def test_both_kinds_are_told_of_one_completion_once_each():
    rows = [[NAN, FLAT, FLAT]] * 3
    assert [kind for kind, *_ in read(chat(*rows))] == ["logits.nonfinite", "logits.uniform"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["content", "logprob", "top_logprobs", "token_logprobs", "x"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_whatever_stands_in_place_of_logprobs_never_raises(value):
    assert all(token >= 0 for _, _, token, _ in read(value))
