"""Every blind fault changes what a tiny engine computes or samples where it strikes, and no bit where it does not."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache

import pytest
import torch

from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.faults import FAULTS, build_faults, describe_fault
from checkengine.engine_shim.faults.blind import BLIND_FAULTS, STRIKES, Strike, requests_of, settings_of
from checkengine.engine_shim.settings import EngineSettings
from checkengine.tiny import tiny_model

MODEL = tiny_model()
RANDOM_EACH_TIME = ("racy_split", "atomic_order")
ON_TOKENS_ONLY = ("lost_tile", "near_tie_flip", "stop_masked_late", "stop_masked_after_repeat")


class Watching:
    """Keeps every step's logits and sampled tokens."""

    def __init__(self) -> None:
        self.steps: list[tuple[torch.Tensor, list[int]]] = []

    @contextmanager
    def step(self, record):
        yield self

    def logits(self, logits: torch.Tensor) -> None:
        self.seen = logits.clone()

    def tokens(self, tokens):
        self.steps.append((self.seen, tokens.tolist()))
        return []


def run(strike: Strike, faults=()) -> list[tuple[torch.Tensor, list[int]]]:
    shim = Watching()
    engine = Engine(MODEL, None, EngineSettings(**settings_of(strike)), shim, faults=faults)
    if strike.dirty_memory:
        for tensor in engine.memory.tensors.values():
            tensor.fill_(torch.nan)
    for request in requests_of(strike.workload):
        engine.submit(request)
    while engine.has_work:
        engine.step()
    return shim.steps


@cache
def clean(name: str) -> list[tuple[torch.Tensor, list[int]]]:
    """Faults with the same workload share the run."""
    first = next(other for other, strike in STRIKES.items() if _alike(strike, STRIKES[name]))
    return run(STRIKES[name]) if first == name else clean(first)


def _alike(one: Strike, other: Strike) -> bool:
    return (one.workload, one.dirty_memory, one.settings) == (other.workload, other.dirty_memory, other.settings)


def fault_of(name: str, parameters):
    return BLIND_FAULTS[name](**parameters)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """NaN equals NaN of the same bits."""
    return left.shape == right.shape and torch.equal(left.view(torch.int32), right.view(torch.int32))


def same(one, other) -> bool:
    return len(one) == len(other) and all(
        left[1] == right[1] and same_bits(left[0], right[0]) for left, right in zip(one, other, strict=True)
    )


def largest_change(one, other) -> float:
    """Of a logit, up to the first step in which tokens differ; infinity for NaN."""
    largest = 0.0
    for left, right in zip(one, other, strict=False):
        if left[0].numel():
            largest = max(largest, float((left[0] - right[0]).abs().max().nan_to_num(torch.inf)))
        if left[1] != right[1]:
            break
    return largest


def tokens_of(steps) -> list[list[int]]:
    return [tokens for _, tokens in steps]


@pytest.mark.parametrize("name", [name for name in BLIND_FAULTS if name not in (*ON_TOKENS_ONLY, "atomic_order")])
def test_a_blind_fault_in_the_model_moves_logits_far_beyond_rounding_and_so_tokens(name: str) -> None:
    struck = run(STRIKES[name], [fault_of(name, STRIKES[name].parameters)])
    assert largest_change(clean(name), struck) > 0.1
    assert tokens_of(struck) != tokens_of(clean(name))


@pytest.mark.parametrize("name", ON_TOKENS_ONLY)
def test_a_blind_fault_behind_the_model_changes_tokens_and_no_logit_before_them(name: str) -> None:
    struck = run(STRIKES[name], [fault_of(name, STRIKES[name].parameters)])
    assert largest_change(clean(name), struck) == 0.0
    assert tokens_of(struck) != tokens_of(clean(name))


def test_the_order_of_atomics_moves_logits_by_a_rounding_only() -> None:
    struck = run(STRIKES["atomic_order"], [fault_of("atomic_order", {})])
    assert 0.0 < largest_change(clean("atomic_order"), struck) < 1e-3


@pytest.mark.parametrize("name", BLIND_FAULTS)
def test_a_blind_fault_whose_condition_never_holds_changes_no_bit(name: str) -> None:
    assert same(clean(name), run(STRIKES[name], [fault_of(name, STRIKES[name].quiet)]))


@pytest.mark.parametrize("name", [name for name in BLIND_FAULTS if name not in RANDOM_EACH_TIME])
def test_a_blind_fault_strikes_the_same_way_each_time(name: str) -> None:
    twice = [run(STRIKES[name], [fault_of(name, STRIKES[name].parameters)]) for _ in range(2)]
    assert same(*twice)


@pytest.mark.parametrize("name", RANDOM_EACH_TIME)
def test_a_racy_fault_comes_out_otherwise_each_time(name: str) -> None:
    assert not same(*(run(STRIKES[name], [fault_of(name, STRIKES[name].parameters)]) for _ in range(2)))


def test_dirty_memory_alone_changes_no_bit() -> None:
    strike = STRIKES["zero_times_tail"]
    assert all(torch.isfinite(logits).all() for logits, _ in clean("zero_times_tail"))
    struck = run(strike, [fault_of("zero_times_tail", strike.parameters)])
    assert any(torch.isnan(logits).any() for logits, _ in struck)


@pytest.mark.parametrize("name", BLIND_FAULTS)
def test_a_blind_fault_is_made_again_from_its_description(name: str) -> None:
    fault = fault_of(name, STRIKES[name].parameters)
    (again,) = build_faults([describe_fault(fault)])
    assert again == fault
    assert again.models
    assert again.fault_class


def test_no_blind_fault_has_the_name_of_another() -> None:
    assert not BLIND_FAULTS.keys() & FAULTS.keys()
    assert BLIND_FAULTS.keys() == STRIKES.keys()
    assert all(name == fault.name for name, fault in BLIND_FAULTS.items())
