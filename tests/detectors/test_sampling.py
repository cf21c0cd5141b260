"""Which tokens a sampler may draw, and what the ones it draws prove."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors.sampling import (
    NEUTRAL,
    Breach,
    Rule,
    Rules,
    Tolerance,
    breaches,
    chosen_logits,
    read_draws,
    rule_of,
)
from checkengine.detectors.sampling_evidence import (
    FOREIGN,
    PASSED_OVER,
    WEIGHTS,
    ReplicaEvidence,
    SequenceEvidence,
    best_factors,
    factors,
)


def judge(logits: torch.Tensor, tokens: list[int], rule: Rule, precision: str = "float32") -> list[int]:
    rules, rows = Rules.of([rule] * len(tokens)), np.arange(len(tokens))
    tolerance = Tolerance.of(precision)  # type: ignore[arg-type]
    maximum = logits.amax(-1).float().numpy()
    chosen = chosen_logits(logits, np.array(tokens))
    ties = tolerance.ties(maximum, chosen)
    draws = read_draws(logits, rows, maximum, chosen, ties, rules)
    return breaches(draws, rows, maximum, chosen, ties, rules, tolerance).tolist()


def test_probabilities_are_those_of_a_double_precision_softmax() -> None:
    logits = torch.randn(6, 5003, generator=torch.Generator().manual_seed(0)) * 4
    tokens = np.array([int(row.argsort()[-(3 + 5 * i)]) for i, row in enumerate(logits)])
    rules = Rules.of([Rule(temperature) for temperature in (1.0, 0.7, 0.3, 2.0, 0.1, 1.3)])
    maximum, chosen = logits.amax(-1).numpy(), chosen_logits(logits, tokens)
    ties = Tolerance.of("float32").ties(maximum, chosen)
    draws = read_draws(logits, np.arange(6), maximum, chosen, ties, rules)
    exact = torch.softmax(logits.double() / torch.from_numpy(rules.temperature)[:, None], -1).numpy()
    larger = logits.numpy() > chosen[:, None]
    assert draws.larger.tolist() == [2 + 5 * i for i in range(6)]
    np.testing.assert_allclose(draws.own, exact[np.arange(6), tokens], rtol=1e-4)
    np.testing.assert_allclose(draws.miss, 1 - exact.max(1), rtol=1e-4)
    np.testing.assert_allclose(draws.above, np.where(larger, exact, 0).sum(1), rtol=1e-4)


def test_a_token_outside_top_k_is_told_and_ties_at_the_kth_value_belong() -> None:
    logits = torch.tensor([[5.0, 4.0, 3.0, 3.0, 3.0, 1.0]]).repeat(6, 1)
    found = judge(logits, [0, 1, 2, 3, 4, 5], Rule(1.0, top_k=3))
    assert found == [0, 0, 0, 0, 0, Breach.OUTSIDE_TOP_K]


def test_a_token_outside_min_p_is_told() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4, 1)
    assert judge(logits, [0, 1, 2, 3], Rule(1.0, min_p=0.25)) == [0, 0, 0, Breach.OUTSIDE_MIN_P]


def test_a_token_outside_top_p_is_told_and_the_one_that_reaches_it_belongs() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4, 1)
    assert judge(logits, [0, 1, 2, 3], Rule(1.0, top_p=0.75)) == [0, 0, Breach.OUTSIDE_TOP_P, Breach.OUTSIDE_TOP_P]


def test_top_p_at_its_border_is_left_to_the_engines_rounding() -> None:
    """0.5 + 0.3 reaches 0.8 or just misses it, as the sum happens to round."""
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(2, 1)
    assert judge(logits, [2, 3], Rule(1.0, top_p=0.8)) == [Breach.NONE, Breach.OUTSIDE_TOP_P]


def test_a_masked_token_is_told() -> None:
    logits = torch.tensor([[1.0, -math.inf, 0.5]]).repeat(3, 1)
    assert judge(logits, [0, 1, 2], Rule(1.0)) == [0, Breach.MASKED, 0]


@pytest.mark.parametrize("order", ["k_p_m", "m_k_p", "p_k_m"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    scale=st.floats(0.1, 12),
    temperature=st.floats(0.1, 2),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 0.5),
    coarse=st.booleans(),
)
def test_no_token_of_an_honest_set_is_told_whatever_the_engines_order_of_filters(
    order: str,
    dtype: torch.dtype,
    seed: int,
    scale: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    coarse: bool,
) -> None:
    """`coarse` makes ties. The engine here works in the dtype of its logits or in float32, as vLLM does."""
    random = torch.Generator().manual_seed(seed)
    logits = (torch.randn(200, generator=random) * scale).to(dtype)
    logits = logits.round() if coarse else logits
    allowed = engines_set(logits.float(), order, temperature, top_k, top_p, min_p)
    name = str(dtype).removeprefix("torch.")
    rule = Rule(temperature, top_k, top_p, min_p)
    found = judge(logits[None].repeat(len(allowed), 1), allowed, rule, name)
    assert found == [0] * len(allowed)


def engines_set(
    logits: torch.Tensor, order: str, temperature: float, top_k: int, top_p: float, min_p: float
) -> list[int]:
    """float32, filters one after another, each on the probabilities that the one before left."""
    scores = logits / temperature
    for step in order.split("_"):
        if step == "k" and 0 < top_k < len(scores):
            scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -torch.inf)
        if step == "p" and top_p < 1:
            ordered, index = scores.softmax(-1).sort(descending=True)
            outside = ordered.cumsum(-1) - ordered >= top_p
            scores = scores.index_fill(0, index[outside], -torch.inf)
        if step == "m" and min_p > 0:
            probabilities = scores.softmax(-1)
            scores = scores.masked_fill(probabilities < min_p * probabilities.max(), -torch.inf)
    return torch.isfinite(scores).nonzero()[:, 0].tolist()


def test_a_rule_that_does_not_tell_what_is_sampled_from_is_no_rule() -> None:
    assert rule_of({"temperature": 0.5, "top_k": -1, "top_p": 0.9}) == Rule(0.5, 0, 0.9)
    assert rule_of({}) is None
    assert rule_of({"temperature": "hot"}) is None
    assert rule_of({"temperature": 1.0, "presence_penalty": 0.1}) is None
    assert rule_of({"temperature": 1.0, "logit_bias": {"5": -100}}) is None
    assert rule_of({"temperature": 1.0, "masked": True}) is None


def test_penalties_and_grammars_are_no_obstacle_where_the_samplers_own_scores_are_given() -> None:
    for name in ("presence_penalty", "repetition_penalty", "grammar"):
        assert rule_of({"temperature": 1.0, name: 1.5}, final=True) == Rule(1.0)
    assert rule_of({"temperature": 1.0, "typical_p": 0.9}, final=True) is None
    assert all(rule_of({"temperature": 1.0, name: off[0]}) == Rule(1.0) for name, off in NEUTRAL.items())


def test_equal_at_the_samplers_precision() -> None:
    left, right = np.array([20.0], np.float32), np.array([20.03], np.float32)
    assert not Tolerance.of("float32").equal(left, right)[0]
    assert Tolerance.of("bfloat16").equal(left, right)[0]


@given(
    miss=st.floats(0, 1, allow_subnormal=False),
    share=st.floats(1e-9, 1),
    precision=st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_no_bet_wins_on_average_against_an_honest_sampler(miss: float, share: float, precision: str) -> None:
    """Ville's inequality needs it. A vocabulary of three: the best one, and two that share the rest."""
    rest = np.array([miss * share, miss * (1 - share)])
    with np.errstate(divide="ignore"):
        below = factors(np.full(2, miss), rest, 3, precision)  # type: ignore[arg-type]
    mean = (1 - miss) * np.exp(best_factors()) + (rest[:, None] * np.exp(below)).sum(0)
    # A best token rarer than 1 / V does not exist.
    if 1 - miss >= 1 / 3:
        assert (mean <= 1 + 1e-9).all()


def test_weights_are_a_mixture() -> None:
    assert len(WEIGHTS) == len(PASSED_OVER) + len(FOREIGN)
    assert WEIGHTS.sum() == pytest.approx(1)


def test_foreign_tokens_accuse_a_sequence_within_a_few_and_a_cleared_slot_forgets() -> None:
    evidence, slots = SequenceEvidence(1e-9), np.array([70])
    evidence.clear(70)
    counted = 0
    while evidence.nats(slots)[0] < evidence.threshold:
        evidence.add(slots, factors(np.array([0.9]), np.array([1e-8]), 50_000, "float32"))
        counted += 1
    assert counted <= 5
    evidence.clear(70)
    assert evidence.nats(slots)[0] == pytest.approx(0)


def test_the_order_of_rows_in_a_step_does_not_matter() -> None:
    random = np.random.default_rng(0)
    steps = factors(random.random((50, 4)).ravel(), random.random(200), 100, "float32").reshape(50, 4, -1)
    forward, backward = ReplicaEvidence(1e12), ReplicaEvidence(1e12)
    for step in steps:
        assert forward.step(step.sum(0)) == pytest.approx(backward.step(step[::-1].sum(0)))


def draws_of(random: np.random.Generator, count: int, lost: float, peak: float) -> np.ndarray:
    """Factors of `count` tokens where the best token has probability 1 - m, log m uniform, and is lost at a rate."""
    miss = np.exp(random.uniform(np.log(peak), np.log(0.9), count))
    below = (random.random(count) < miss) | (random.random(count) < lost)
    logs = np.tile(best_factors(), (count, 1))
    logs[below] = factors(miss[below], miss[below] / 20, 50_000, "float32")
    return logs


def test_a_best_token_lost_in_one_of_a_hundred_draws_is_proved_within_100_steps_of_16_sampled_rows() -> None:
    """Of text as confident as a large model's: the chance of another token is anything from 1e-7 up, evenly by its
    logarithm. One sequence alone takes about 750 tokens: fewer do not hold the proof, whatever the test."""
    random = np.random.default_rng(0)
    delays = []
    for _ in range(20):
        replica, steps = ReplicaEvidence(1e10), 0
        while replica.step(draws_of(random, 16, 0.01, 1e-7).sum(0)) < replica.threshold:
            steps += 1
        delays.append(steps)
    assert np.median(delays) <= 100


def test_one_sequence_alone_proves_a_lost_best_token_within_a_thousand_sampled_tokens() -> None:
    random = np.random.default_rng(0)
    delays = []
    for _ in range(20):
        nats = np.logaddexp.reduce(np.cumsum(draws_of(random, 4000, 0.01, 1e-7), 0) + np.log(WEIGHTS), axis=1)
        delays.append(int((nats >= np.log(1e9)).argmax()))
    assert 0 < np.median(delays) <= 1000


def test_a_million_honest_draws_accuse_no_sequence_and_no_replica() -> None:
    random = np.random.default_rng(1)
    replica, highest = ReplicaEvidence(1e10), 0.0
    for _ in range(100):
        logs = draws_of(random, 10_000, 0.0, 1e-7)
        nats = np.logaddexp.reduce(np.cumsum(logs.reshape(20, 500, -1), 1) + np.log(WEIGHTS), axis=2)
        assert nats.max() < np.log(1e9)
        for step in logs.reshape(-1, 100, logs.shape[1]).sum(1):
            highest = max(highest, replica.step(step))
    assert highest < replica.threshold
