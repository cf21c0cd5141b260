"""The token drawn depends on logits, parameters, seed and position, and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from checkengine.engine_shim.engine.request import SamplingParameters
from checkengine.engine_shim.engine.sampler import sample


def draws(logits: np.ndarray, count: int = 4000, **parameters: object) -> np.ndarray:
    sampling = SamplingParameters(**parameters)  # type: ignore[arg-type]
    tokens = [sample(logits, sampling, [], [], position) for position in range(count)]
    return np.bincount(tokens, minlength=len(logits)) / count


LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def test_draws_follow_the_softmax() -> None:
    assert np.abs(draws(LOGITS) - np.exp(LOGITS)).max() < 0.03


def test_draws_follow_the_softmax_over_a_wide_range_of_scores() -> None:
    """Most of a vocabulary is skipped by bounds on the noise; the bounds may not change a draw."""
    logits = np.concatenate((np.zeros(2000, np.float32), np.full(1, np.log(2000.0), np.float32)))
    assert abs(draws(logits)[2000] - 0.5) < 0.04


def test_skipping_by_bounds_gives_the_same_token_as_looking_at_all() -> None:
    random = np.random.default_rng(0)
    for position in range(200):
        logits = (random.normal(size=500) * 4).astype(np.float32)
        order = random.permutation(500)
        sampling = SamplingParameters(seed=position)
        winner = sample(logits, sampling, [], [], position)
        # With everything but the winner and some others removed, the winner still wins: its noise is its own.
        masked = np.where(np.isin(np.arange(500), [*order[:250], winner]), logits, -np.inf).astype(np.float32)
        assert sample(masked, sampling, [], [], position) == winner


def test_temperature_sharpens() -> None:
    expected = np.exp(LOGITS * 2) / np.exp(LOGITS * 2).sum()
    assert np.abs(draws(LOGITS, temperature=0.5) - expected).max() < 0.03


def test_temperature_zero_is_the_largest_logit() -> None:
    assert draws(LOGITS, temperature=0, count=5)[0] == 1


@pytest.mark.parametrize(
    ("parameters", "allowed"),
    [({"top_k": 2}, 2), ({"top_p": 0.7}, 2), ({"top_p": 0.81}, 3), ({"min_p": 0.25}, 3), ({"min_p": 0.7}, 1)],
)
def test_filters_exclude_the_unlikely_and_renormalise(parameters: dict[str, float], allowed: int) -> None:
    seen = draws(LOGITS, **parameters)
    kept = np.exp(LOGITS) * (np.arange(4) < allowed)
    assert np.abs(seen - kept / kept.sum()).max() < 0.03
    assert (seen[allowed:] == 0).all()


def test_the_nucleus_of_a_flat_vocabulary_is_found_beyond_the_first_guess() -> None:
    seen = draws(np.zeros(4000, np.float32) + np.linspace(0, 1e-3, 4000, dtype=np.float32), top_p=0.5, count=3000)
    assert (seen[:1990] == 0).all()
    assert seen[2010:].sum() > 0.97


def test_presence_and_frequency_count_output_tokens_only() -> None:
    logits = np.zeros(3, np.float32)
    sampling = SamplingParameters(temperature=0, presence_penalty=0.5, frequency_penalty=0.5)
    assert sample(logits, sampling, [0, 0, 0], [], 3) == 0
    assert sample(logits, sampling, [1], [0, 0, 1], 4) == 2


def test_the_repetition_penalty_counts_the_prompt_and_respects_signs() -> None:
    sampling = SamplingParameters(temperature=0, repetition_penalty=2.0)
    assert sample(np.array([1.0, 0.9, -5.0], np.float32), sampling, [0], [], 1) == 1
    assert sample(np.array([-1.0, -1.5, -9.0], np.float32), sampling, [0], [], 1) == 1


def test_a_row_of_nan_gives_a_token_and_no_error() -> None:
    for parameters in ({}, {"temperature": 0.0}, {"top_p": 0.5, "top_k": 3, "min_p": 0.1}):
        assert sample(np.full(8, np.nan, np.float32), SamplingParameters(**parameters), [], [], 0) == 0


def test_the_draw_changes_with_seed_and_with_position() -> None:
    flat = np.zeros(1000, np.float32)
    tokens = {sample(flat, SamplingParameters(seed=seed), [], [], at) for seed in range(5) for at in range(5)}
    assert len(tokens) > 20


def test_a_rounding_of_logits_hardly_ever_changes_a_draw() -> None:
    random = np.random.default_rng(1)
    logits = random.normal(size=2000).astype(np.float32)
    changed = 0
    for position in range(300):
        moved = logits + (random.normal(size=2000) * 1e-5).astype(np.float32)
        sampling = SamplingParameters(seed=5)
        changed += sample(logits, sampling, [], [], position) != sample(moved, sampling, [], [], position)
    assert changed <= 1
