"""The sampler guard, on steps made by hand and on the embedded engine with a fault planted in its sampler."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from checkengine.detectors import row_stats
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.sampler import SamplerGuard
from checkengine.guards.settings import SamplerSettings
from checkengine.guards.step import SequenceStart, StepView

Look = Callable[..., list[Finding]]


@pytest.fixture
def look(step_of: Callable[..., StepView]) -> Look:
    """One step of as many new sequences as there are tokens, all sampled alike."""

    def run(
        logits: torch.Tensor,
        tokens: Sequence[int],
        sampling: dict[str, Any],
        *,
        settings: SamplerSettings | None = None,
        stops: tuple[int, ...] = (),
        **fields: Any,
    ) -> list[Finding]:
        guard = SamplerGuard(settings or SamplerSettings())
        names = [f"s{row}" for row in range(len(tokens))]
        for row, name in enumerate(names):
            guard.begin(SequenceStart(row, name, sampling=sampling, stop_tokens=stops))
        view = step_of({name: [token] for name, token in zip(names, tokens, strict=True)}, stats=row_stats(logits))
        changed: dict[str, Any] = {"scores": logits, **fields}
        return list(guard.observe(_with(view, changed)))

    return run


def _with(view: StepView, changed: dict[str, Any]) -> StepView:
    from dataclasses import replace

    return replace(view, **changed)


GREEDY = {"temperature": 0.0}
LOGITS = torch.tensor([[1.0, 5.0, 4.9, -2.0]])


def test_a_greedy_token_that_is_not_the_best_is_told_at_once(look: Look) -> None:
    (finding,) = look(LOGITS.repeat(3, 1), [1, 2, 1], GREEDY)
    assert (finding.kind, finding.sequence, finding.severity) == ("sampler.inconsistent", "s1", Severity.ERROR)
    assert finding.evidence["breach"] == 1


def test_a_tie_of_the_best_is_right_whichever_is_taken(look: Look) -> None:
    tied = torch.tensor([[1.0, 5.0, 5.0, 5.0]]).repeat(4, 1)
    assert [finding.sequence for finding in look(tied, [0, 1, 2, 3], GREEDY)] == ["s0"]


def test_a_sampler_of_bfloat16_may_take_any_token_that_equals_the_best_in_bfloat16(look: Look) -> None:
    logits = torch.tensor([[20.0, 20.03, 19.5]]).repeat(3, 1)
    coarse = SamplerSettings(precision="bfloat16")
    assert [finding.sequence for finding in look(logits, [0, 1, 2], GREEDY, settings=coarse)] == ["s2"]
    assert [finding.sequence for finding in look(logits, [0, 1, 2], GREEDY)] == ["s0", "s2"]
    half = logits.bfloat16()
    assert [finding.sequence for finding in look(half, [0, 1, 2], GREEDY)] == ["s2"]


def test_a_draw_outside_its_set_is_told(look: Look) -> None:
    found = look(LOGITS.repeat(4, 1), [0, 1, 2, 3], {"temperature": 1.0, "top_k": 2})
    assert [(finding.sequence, finding.evidence["breach"]) for finding in found] == [("s0", 2), ("s3", 2)]


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.0, "repetition_penalty": 1.1},
        {"temperature": 0.0, "logit_bias": {3: 100}},
        {"temperature": 0.0, "grammar": "root ::= x"},
        {"temperature": 0.0, "min_tokens": 5},
        {"temperature": 0.0, "masked": True},
    ],
)
def test_what_it_cannot_know_makes_it_abstain(look: Look, sampling: dict[str, Any]) -> None:
    assert look(LOGITS, [3], sampling) == []


def test_rows_that_are_not_finite_impossible_tokens_and_several_tokens_are_left_to_others(
    look: Look, step_of: Callable[..., StepView]
) -> None:
    poisoned = LOGITS.clone()
    poisoned[0, 0] = math.nan
    assert look(poisoned, [2], GREEDY) == []
    assert look(LOGITS, [4], GREEDY) == []
    assert look(LOGITS, [-1], GREEDY) == []
    guard = SamplerGuard(SamplerSettings())
    guard.begin(SequenceStart(0, "a", sampling=GREEDY))
    assert list(guard.observe(_with(step_of({"a": [2, 2]}), {"scores": LOGITS}))) == []


def test_an_end_token_that_is_passed_over_is_no_fault_of_the_sampler(look: Look) -> None:
    """Engines keep end tokens from being sampled: minimum lengths, structured output. Another guard reads these."""
    assert look(LOGITS, [2], GREEDY, stops=(1,)) == []
    assert len(look(LOGITS, [2], GREEDY, stops=(0,))) == 1


def test_the_samplers_own_scores_are_judged_in_place_of_the_raw_logits(look: Look) -> None:
    final = torch.tensor([[1.0, -math.inf, 4.9, 5.5]])
    penalised = {"temperature": 0.0, "repetition_penalty": 1.3}
    assert look(LOGITS, [3], penalised, scores=final, scores_final=True) == []
    (finding,) = look(LOGITS, [1], penalised, scores=final, scores_final=True)
    assert finding.evidence["maximum"] == 5.5


def test_statistics_alone_judge_greedy_rows_and_every_row_of_a_speculative_step(
    step_of: Callable[..., StepView],
) -> None:
    guard = SamplerGuard(SamplerSettings())
    for row, name in enumerate("ab"):
        guard.begin(SequenceStart(row, name, sampling=GREEDY))
    stats = row_stats(torch.cat((LOGITS, LOGITS.flip(1), LOGITS)))
    view = step_of({"a": [1, 1], "b": [1]}, stats=stats, before=7)
    (finding,) = guard.observe(_with(view, {"stats_of": np.array([0, 0, 1], np.int32)}))
    assert (finding.sequence, finding.token) == ("a", 8)


def test_tokens_of_a_neighbours_row_accuse_sampled_sequences_within_a_few_steps(
    step_of: Callable[..., StepView],
) -> None:
    """A row mix-up between sampler and batch: each token is likely, under another row's logits."""
    random = torch.Generator().manual_seed(0)
    guard = SamplerGuard(SamplerSettings())
    names = [f"s{row}" for row in range(8)]
    for row, name in enumerate(names):
        guard.begin(SequenceStart(row, name, sampling={"temperature": 1.0}))
    accused: dict[str, int] = {}
    for step in range(40):
        logits = torch.randn(8, 4000, generator=random) * 5
        tokens = torch.multinomial(logits.softmax(-1), 1, generator=random)[:, 0].roll(1).tolist()
        view = step_of({n: [t] for n, t in zip(names, tokens, strict=True)}, step=step, stats=row_stats(logits))
        for finding in guard.observe(_with(view, {"scores": logits})):
            accused.setdefault(finding.sequence, step)
    assert len(accused) == 8
    assert max(accused.values()) <= 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_honest_draws_with_ties_and_filters_accuse_nobody(dtype: torch.dtype, step_of: Callable[..., StepView]) -> None:
    """20,000 draws by torch, of every kind in turn; the benchmark makes it a million."""
    random = torch.Generator().manual_seed(1)
    guard = SamplerGuard(SamplerSettings())
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.4, "top_k": 20},
        {"temperature": 0.8, "min_p": 0.1},
    ]
    names = [f"s{row}" for row in range(200)]
    for row, name in enumerate(names):
        guard.begin(SequenceStart(row, name, sampling=kinds[row % 4]))
    for step in range(100):
        logits = (torch.randn(200, 300, generator=random) * 4).to(dtype)
        logits[::2] = logits[::2].round()
        tokens = honest(logits.float(), kinds, random)
        view = step_of({n: [t] for n, t in zip(names, tokens, strict=True)}, step=step, stats=row_stats(logits))
        assert list(guard.observe(_with(view, {"scores": logits}))) == []


def honest(logits: torch.Tensor, kinds: Sequence[dict[str, Any]], random: torch.Generator) -> list[int]:
    tokens = torch.zeros(len(logits), dtype=torch.long)
    for number, kind in enumerate(kinds):
        rows = logits[number :: len(kinds)]
        if not kind["temperature"]:
            tokens[number :: len(kinds)] = rows.argmax(-1)
            continue
        scores = rows / kind["temperature"]
        if "top_k" in kind:
            scores = scores.masked_fill(scores < scores.topk(kind["top_k"]).values[:, -1:], -torch.inf)
        probabilities = scores.softmax(-1)
        if "min_p" in kind:
            floor = kind["min_p"] * probabilities.amax(-1, keepdim=True)
            probabilities = probabilities.masked_fill(probabilities < floor, 0)
        tokens[number :: len(kinds)] = torch.multinomial(probabilities, 1, generator=random)[:, 0]
    return tokens.tolist()


def test_slots_are_freed_with_their_sequences_and_a_second_life_starts_clean(step_of: Callable[..., StepView]) -> None:
    guard = SamplerGuard(SamplerSettings())
    for life in range(500):
        guard.begin(SequenceStart(life, f"s{life}", sampling=GREEDY))
        found = list(guard.observe(_with(step_of({f"s{life}": [2]}), {"scores": LOGITS})))
        assert len(found) == 1
        guard.forget(f"s{life}")
    assert not guard._slots
    assert not guard._starts
    assert len(guard._free) == 1


def test_a_step_costs_a_gather_for_greedy_rows_and_a_bounded_pass_for_sampled_ones(
    step_of: Callable[..., StepView],
) -> None:
    logits = torch.randn(256, 32_000, generator=torch.Generator().manual_seed(2)) * 3
    stats, tokens = row_stats(logits, "screen"), logits.argmax(-1).tolist()
    names = tuple(f"s{row}" for row in range(256))
    guard = SamplerGuard(SamplerSettings())
    for row, name in enumerate(names):
        guard.begin(SequenceStart(row, name, sampling=GREEDY if row % 2 else {"temperature": 1.0}))
    view = _with(step_of(dict(zip(names, ([t] for t in tokens), strict=True)), stats=stats), {"scores": logits})
    spent = []
    for _ in range(60):
        before = time.thread_time_ns()
        guard.observe(view)
        spent.append(time.thread_time_ns() - before)
    assert statistics.median(spent) < 2_000_000
