"""Naming the attribute that separates faulty requests from healthy ones."""

from __future__ import annotations

import numpy as np
import pytest

from checkengine.dashboards.explain import Attributes, Condition, explain

BLOCK = 32


def requests(count: int, seed: int) -> list[Attributes]:
    """Attributes of ordinary requests, all independent of each other."""
    random = np.random.default_rng(seed)
    return [
        {
            "length": (length := int(random.integers(1, 4096))),
            "length_mod_block": length % BLOCK,
            "device": str(random.choice(["gpu0", "gpu1", "gpu2", "gpu3"])),
            "kernel": str(random.choice(["paged", "prefill"])),
            "prefix_hit": bool(random.random() < 0.3),
            "rows": int(random.integers(1, 64)),
        }
        for _ in range(count)
    ]


def split(rule: Condition | None, *, noise: float = 0.0, seed: int = 0) -> tuple[list[Attributes], list[Attributes]]:
    """Requests that meet the rule are faulty, but for a share of them; without a rule chance decides."""
    random = np.random.default_rng(seed + 1000)
    faulty, healthy = [], []
    for request in requests(1500, seed):
        bad = rule.holds(request) if rule else random.random() < 0.1
        flip = bool(random.random() < noise)
        (faulty if bad and not flip else healthy).append(request)
    return faulty, healthy


@pytest.mark.parametrize("seed", range(3))
def test_a_fault_at_one_offset_in_the_block_is_named(seed: int) -> None:
    found = explain(*split(Condition("length_mod_block", "is", 1), seed=seed))
    assert found is not None
    assert found.conditions == (Condition("length_mod_block", "is", 1),)
    assert found.faults_explained == 1.0
    assert found.healthy_that_match == 0.0
    assert str(found) == "length_mod_block is 1: 100% of faulty, 0% of healthy requests"


def test_a_fault_of_one_device_is_named_although_it_strikes_only_now_and_then() -> None:
    found = explain(*split(Condition("device", "is", "gpu2"), noise=0.5))
    assert found is not None
    assert found.conditions == (Condition("device", "is", "gpu2"),)
    assert found.faults_explained == 1.0
    assert 0 < found.healthy_that_match < 0.25


def test_a_fault_of_long_requests_is_a_threshold() -> None:
    found = explain(*split(Condition("length", ">", 3000)))
    assert found is not None
    (condition,) = found.conditions
    assert (condition.attribute, condition.relation) == ("length", ">")
    assert condition.value == pytest.approx(3000, abs=10)


def test_two_conditions_that_must_meet_are_both_named() -> None:
    population = requests(3000, 5)
    faulty = [r for r in population if r["device"] == "gpu1" and r["kernel"] == "prefill"]
    healthy = [r for r in population if not (r["device"] == "gpu1" and r["kernel"] == "prefill")]
    found = explain(faulty, healthy)
    assert found is not None
    assert {condition.attribute for condition in found.conditions} == {"device", "kernel"}
    assert (found.faults_explained, found.healthy_that_match) == (1.0, 0.0)


@pytest.mark.parametrize("seed", range(8))
def test_faults_that_strike_by_chance_are_not_explained(seed: int) -> None:
    assert explain(*split(None, seed=seed)) is None


@pytest.mark.parametrize("seed", range(8))
def test_a_handful_of_faults_by_chance_is_not_explained(seed: int) -> None:
    population = requests(300, seed)
    assert explain(population[:8], population[8:]) is None


def test_too_few_faults_are_not_explained() -> None:
    faulty, healthy = split(Condition("length_mod_block", "is", 1))
    assert explain(faulty[:5], healthy) is None
    assert explain([], healthy) is None
    assert explain(faulty, []) is None


def test_attributes_that_are_missing_on_some_requests_do_no_harm() -> None:
    faulty, healthy = split(Condition("device", "is", "gpu0"))
    thinned = [{k: v for k, v in r.items() if k != "rows" or i % 3} for i, r in enumerate(healthy)]
    found = explain(faulty, thinned)
    assert found is not None
    assert found.conditions == (Condition("device", "is", "gpu0"),)


def test_requests_without_attributes_are_not_explained() -> None:
    assert explain([{}] * 10, [{}] * 10) is None
