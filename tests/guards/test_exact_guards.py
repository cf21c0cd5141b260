"""Guards whose findings are no matter of taste: non-finite and uniform logits, impossible ids, ignored stops."""

from __future__ import annotations

import numpy as np

from checkengine.guards.finding import Severity
from checkengine.guards.ignored_stop import IgnoredStopGuard
from checkengine.guards.impossible_token import ImpossibleTokenGuard
from checkengine.guards.nonfinite import NonFiniteGuard
from checkengine.guards.settings import UniformSettings
from checkengine.guards.step import SequenceStart
from checkengine.guards.uniform import UniformGuard

NAN, INF = float("nan"), float("inf")


def test_nan_and_both_infinities_in_raw_logits_are_found_on_their_rows_only(stats_of, step_of):
    stats = stats_of([[1, 2, 3], [NAN, 2, NAN], [1, INF, 3], [1, 2, -INF]])
    step = step_of({"clean": [5], "nan": [5], "plus": [5], "minus": [5]}, step=4, before=9, stats=stats)
    found = {finding.sequence: finding for finding in NonFiniteGuard().observe(step)}
    assert set(found) == {"nan", "plus", "minus"}
    assert {finding.kind for finding in found.values()} == {"logits.nonfinite"}
    assert found["nan"].evidence == {"nan": 2, "positive_infinite": 0, "negative_infinite": 0}
    assert found["plus"].evidence["positive_infinite"] == 1
    assert found["minus"].evidence["negative_infinite"] == 1
    assert (found["nan"].step, found["nan"].token) == (4, 9)


def test_level_screen_finds_nonfinite_rows_without_counting_them(stats_of, step_of):
    (finding,) = NonFiniteGuard().observe(step_of({"a": [1]}, stats=stats_of([[NAN, 1]], level="screen")))
    assert finding.evidence == {}


def test_a_fault_is_reported_once_until_the_sequence_is_forgotten(stats_of, step_of):
    guard, step = NonFiniteGuard(), step_of({"a": [1]}, stats=stats_of([[NAN, 1]]))
    assert len(list(guard.observe(step))) == 1
    assert list(guard.observe(step)) == []
    guard.forget("a")
    assert len(list(guard.observe(step))) == 1


def test_guards_of_logits_find_nothing_where_nothing_was_measured(step_of):
    step = step_of({"a": [1]}, stats=None)
    assert list(NonFiniteGuard().observe(step)) == []
    assert list(UniformGuard(UniformSettings(), 4).observe(step)) == []


def test_a_row_of_equal_logits_is_uniform_at_either_level(stats_of, step_of):
    for level in ("screen", "full"):
        stats = stats_of([[0.5, 0.5, 0.5], [0.5, 0.5, 9]], level=level)
        (finding,) = UniformGuard(UniformSettings(), 3).observe(step_of({"flat": [1], "fine": [1]}, stats=stats))
        assert (finding.kind, finding.sequence) == ("logits.uniform", "flat")


def test_a_row_that_differs_by_rounding_only_is_uniform_by_its_entropy(stats_of, step_of):
    stats = stats_of([[0.5, 0.5, 0.5000001]])
    (finding,) = UniformGuard(UniformSettings(), 3).observe(step_of({"a": [1]}, stats=stats))
    assert finding.evidence["entropy"] > np.log(3) - 1e-4


def test_a_flat_row_of_a_random_model_is_not_uniform(stats_of, step_of):
    rows = np.random.default_rng(0).normal(0, 0.05, (4, 4096))
    step = step_of({name: [1] for name in "abcd"}, stats=stats_of(rows))
    assert list(UniformGuard(UniformSettings(), 4096).observe(step)) == []


def test_a_row_of_nothing_but_nan_is_nonfinite_and_not_uniform(stats_of, step_of):
    step = step_of({"a": [1]}, stats=stats_of([[NAN, NAN]]))
    assert list(UniformGuard(UniformSettings(), 2).observe(step)) == []
    assert len(list(NonFiniteGuard().observe(step))) == 1


def test_ids_outside_the_vocabulary_and_in_its_holes_are_impossible(step_of):
    guard = ImpossibleTokenGuard(np.array([True, True, False, True]))
    step = step_of({"hole": [2], "past": [4], "negative": [-1], "fine": [3], "late": [0, 1, 9]}, before=10)
    found = {finding.sequence: finding for finding in guard.observe(step)}
    assert set(found) == {"hole", "past", "negative", "late"}
    assert found["hole"].evidence == {"token_id": 2, "vocabulary": 4}
    assert (found["hole"].token, found["late"].token) == (10, 12)


def test_a_hole_of_a_real_tokenizer_is_impossible_and_its_words_are_not(vocabulary_of, step_of):
    vocabulary = vocabulary_of(["sea"], holes=3)
    guard = ImpossibleTokenGuard(vocabulary.possible)
    step = step_of({"word": [vocabulary.ids_of("sea")[0]], "end": [0], "hole": [3]})
    assert [finding.sequence for finding in guard.observe(step)] == ["hole"]


def test_a_sequence_that_goes_on_after_its_end_token_ignored_the_stop(drive):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", stop_tokens=(2, 7)))
    (finding,) = drive(guard, [5, 6, 7, 5, 5, 7, 5])
    assert (finding.kind, finding.severity, finding.step, finding.token) == ("stop.ignored", Severity.ERROR, 3, 3)


def test_a_sequence_that_ends_at_its_end_token_is_no_fault(drive):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", stop_tokens=(2,)))
    assert drive(guard, [5, 6, 2]) == []


def test_going_on_is_no_fault_where_the_client_asked_for_it(drive):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", stop_tokens=(2,), ignores_stop=True))
    assert drive(guard, [2, 5, 2, 5]) == []


def test_another_sequences_end_token_is_an_ordinary_token_of_this_one(drive):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", stop_tokens=(2,)))
    guard.begin(SequenceStart(2, "b", stop_tokens=(9,)))
    assert drive(guard, [9, 5, 9, 5], sequence="a") == []


def test_tokens_that_speculation_drafted_past_the_end_count_only_if_the_sequence_comes_back(step_of):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", stop_tokens=(2,)))
    assert list(guard.observe(step_of({"a": [5, 2, 6, 6]}, before=4))) == []
    (finding,) = guard.observe(step_of({"a": [8]}, before=8))
    assert finding.token == 6


def test_a_name_used_again_starts_afresh(drive):
    guard = IgnoredStopGuard()
    guard.begin(SequenceStart(1, "a", stop_tokens=(2,)))
    assert drive(guard, [5, 2]) == []
    guard.forget("a")
    guard.begin(SequenceStart(2, "a", stop_tokens=(2,)))
    assert drive(guard, [5, 5]) == []
