"""An end token that was the model's choice and was not taken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from checkengine.guards.ignored_stop import IgnoredStopGuard
from checkengine.guards.step import SequenceStart

GREEDY = {"temperature": 0.0}


def step_with(stats_of, step_of, token, sequence="a"):
    """End token 2 has the largest logit."""
    stats = replace(stats_of([[0, 1, 9, 3]]), argmax=np.array([2]))
    return step_of({sequence: [token]}, step=5, before=7, stats=stats)


def test_a_greedy_request_whose_best_token_ends_it_but_is_not_taken_ignored_the_stop(stats_of, step_of):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", sampling=GREEDY, stop_tokens=(2,)))
    (finding,) = guard.observe(step_with(stats_of, step_of, 3))
    assert (finding.kind, finding.token, dict(finding.evidence)) == ("stop.ignored", 7, {"masked_end_token": 2})
    assert not guard.observe(step_with(stats_of, step_of, 3)), "it is reported once"


def test_the_end_token_itself_is_no_finding(stats_of, step_of):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", sampling=GREEDY, stop_tokens=(2,)))
    assert not guard.observe(step_with(stats_of, step_of, 2))


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 0.0, "frequency_penalty": 0.5},
        {"temperature": 0.0, "repetition_penalty": 1.1},
        {"temperature": 0.0, "min_tokens": 20},
        {"temperature": 0.0, "logit_bias": {"2": -100}},
        {"temperature": 0.0, "structured_outputs": {"json": "{}"}},
    ],
)
def test_a_request_that_may_rightly_pass_over_its_best_token_is_left_alone(sampling, stats_of, step_of):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", sampling=sampling, stop_tokens=(2,)))
    assert not guard.observe(step_with(stats_of, step_of, 3))


def test_a_request_that_ignores_its_stops_or_has_others_is_left_alone(stats_of, step_of):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", sampling=GREEDY, stop_tokens=(2,), ignores_stop=True))
    guard.begin(SequenceStart(2, "b", sampling=GREEDY, stop_tokens=(9,)))
    assert not guard.observe(step_with(stats_of, step_of, 3))
    assert not guard.observe(step_with(stats_of, step_of, 3, "b"))


def test_level_screen_leaves_this_sign_out(stats_of, step_of):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", sampling=GREEDY, stop_tokens=(2,)))
    assert not guard.observe(step_of({"a": [3]}, stats=stats_of([[0, 1, 9, 3]], level="screen")))
