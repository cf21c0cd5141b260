"""Slices of the corpora of `bench faults`, and that they can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from checkengine.benchmarks import corpus_calls, corpus_clean, corpus_numerics, corpus_persistence
from checkengine.benchmarks.corpus_calls import depends_on_unowned, lengths, random_call, synthetic_call
from checkengine.benchmarks.corpus_faults import figures_of
from checkengine.benchmarks.corpus_numerics import DEFECTS, WEIGHTS, Numerics, model_of, numerics_cases, verdict_on
from checkengine.benchmarks.corpus_persistence import judge_seeded, seeded_case
from checkengine.engine_shim.faults import HEALTHY
from checkengine.engine_shim.faults.over_read import OverRead, OverReadKeys, OverReadValues
from checkengine.replay.judge.fault_class import Persistence
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.selftest_cases import case_of
from checkengine.selftest_judging import Judged, Outcome


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("made", [OverRead, OverReadKeys, OverReadValues])
@pytest.mark.parametrize("length", [17, 32, 33, 1000, 16_385])
def test_an_over_read_of_one_slot_shows_under_fills_at_any_length(made, length: int) -> None:
    fault = made(block_size=corpus_calls.BLOCK)
    assert depends_on_unowned(synthetic_call(length, seed=1, faults=[fault]))
    assert not depends_on_unowned(synthetic_call(length, seed=1))


def test_right_calls_of_any_shape_are_not_convicted() -> None:
    random = np.random.default_rng(1)
    assert not any(depends_on_unowned(random_call(random, seed)) for seed in range(150))


def test_the_lengths_reach_from_one_end_to_the_other() -> None:
    assert (lengths()[0], lengths()[-1], lengths(8)[-1]) == (17, 131_072, 131_072)


def test_there_are_at_least_two_hundred_cases_of_rounding() -> None:
    cases = numerics_cases()
    assert len(cases) == len(set(cases)) >= 200
    assert {case.order for case in cases} >= set(HEALTHY)
    assert {case.weights for case in cases} == set(WEIGHTS)


def test_quantised_weights_differ_and_stay_near() -> None:
    plain = model_of("float32", "as they are").model.layers[0].mlp.up_proj.weight
    for weights, levels in (("int8", 255), ("int4", 15)):
        coarse = model_of("float32", weights).model.layers[0].mlp.up_proj.weight
        assert 0 < float((plain - coarse).detach().abs().max()) <= float(plain.abs().max()) / (levels - 1) * 1.01


@pytest.mark.parametrize(
    "case",
    [
        Numerics("bfloat16", "split_k", "int4", 1),
        Numerics("float16", "chunked_softmax", "as they are", 0),
        Numerics("float32", "as it is", "int8", 3, "reversed_sum"),
    ],
)
def test_rounding_is_never_called_a_defect(case: Numerics) -> None:
    assert verdict_on(case).kind not in DEFECTS


@pytest.mark.parametrize("seed", range(6))
def test_what_comes_again_is_told_from_what_lives_on_and_from_what_came_once(seed: int) -> None:
    wanted, told = judge_seeded(seeded_case(seed))
    assert told == wanted


def test_memory_that_one_step_only_read_after_the_change_is_not_taken_for_what_came_once() -> None:
    """The struck slot was written in the window, and one step read it before it was struck."""
    case = seeded_case(76)
    assert judge_seeded(case) == (Persistence.PERSISTENT, Persistence.PERSISTENT)


def test_clean_windows_of_a_live_engine_are_judged_and_none_is_convicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_clean, "LOAD", replace(corpus_clean.LOAD, requests=3, tokens=8, rows=2))
    (figure,) = corpus_clean.clean_replay_figures(1, processes=1)
    assert (figure["value"], figure["wrong"]) == (0, [])
    assert sum(figure["verdicts"].values()) > 0
    assert set(figure["verdicts"]) == {"no fault found", "inconclusive"}


def test_a_clean_window_that_is_convicted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    convicted = Verdict(VerdictKind.TRANSIENT, "it came once")
    monkeypatch.setattr(corpus_clean, "verdict_on", lambda capture, executor, pinned: convicted)
    (figure,) = corpus_clean.clean_replay_figures(5, processes=1)
    assert not figure["ok"]
    assert figure["value"] == len(figure["wrong"]) >= 5
    assert "it came once" in figure["wrong"][0]


def test_a_corpus_that_ran_out_of_time_says_how_much_of_it_was_done() -> None:
    (figure,) = corpus_persistence.persistence_figures(most_seconds=-1, processes=1)
    assert figure["name"] == "faults.persistence told right, 0 seeded cases (of 1,000: -1 s were up)"
    assert not figure["ok"]


def test_the_seeded_cases_are_of_each_kind() -> None:
    wanted = [seeded_case(seed).wanted for seed in range(30)]
    assert {kind: wanted.count(kind) for kind in Persistence} == dict.fromkeys(Persistence, 10)
    assert corpus_persistence.CASES >= 1000


def test_a_fault_that_is_not_named_is_in_the_figure_by_name() -> None:
    found = [
        Judged(case_of("over_read"), Outcome.NAMED, place=True),
        Judged(case_of("over_read_keys"), Outcome.MISNAMED, "under-read", place=False),
        Judged(case_of("scale_page"), Outcome.INERT),
    ]
    named, placed, inert = figures_of("own", found)
    assert (named["value"], named["ok"]) == (50.0, False)
    assert named["not_named"] == {
        "over_read_keys": "over-read: misnamed as under-read",
        "scale_page": "wrong scale: inert",
    }
    assert placed["misplaced"] == ["over_read_keys"]
    assert (inert["value"], inert["ok"]) == (1, False)


def test_numerics_that_a_judge_convicts_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_numerics, "verdict_on", lambda case: Verdict(VerdictKind.CODE_DEFECT, "wrong"))
    (figure,) = corpus_numerics.numerics_figures(quick=True)
    assert figure["value"] == len(figure["wrong"]) > 0
    assert not figure["ok"]
