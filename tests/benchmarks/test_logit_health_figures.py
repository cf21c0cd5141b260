"""The figures of logit health measure what they say: planted faults are counted, and a blind measurer shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from checkengine.benchmarks import flips, logit_faults
from checkengine.benchmarks.detectors import logits as health
from checkengine.detectors.logits import row_stats


def values(figures: list[dict[str, object]]) -> dict[str, object]:
    return {str(figure["name"]): figure["value"] for figure in figures}


def test_a_slice_of_every_planted_change_is_seen():
    found = values(logit_faults.agreement_figures() + logit_faults.fault_figures(40))
    found |= values(logit_faults.fingerprint_figures(20_000))
    assert {name: value for name, value in found.items() if value and name != "logits.logsumexp_entropy.apart"} == {}
    assert found["logits.logsumexp_entropy.apart"] < 1e-5


def test_a_guard_that_finds_nothing_misses_every_planted_fault(monkeypatch):
    monkeypatch.setattr(logit_faults, "findings", lambda step: [])
    assert values(logit_faults.fault_figures(40))["logits.faults.missed"] == 20


def test_a_fingerprint_without_the_column_misses_swaps_and_rotations(monkeypatch):
    monkeypatch.setattr(logit_faults, "terms", lambda bits, columns: bits.astype(np.uint64))
    found = values(logit_faults.fingerprint_figures(1000))
    assert found["logits.fingerprint.swaps"] > 900
    assert found["logits.fingerprint.rotations"] == 1000


def test_speed_is_a_multiple_of_a_peer_on_the_same_rows():
    found = health.speed_figures(((4, 512),), 3)
    assert len({figure["name"] for figure in found}) == len(found) == 3
    for figure in found:
        assert figure["ok"] == (figure["value"] <= figure["target"])
        assert figure["peer_value"] > 0


def honest_rows(rows: int = 2048, columns: int = 600) -> flips.Honest:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, columns, generator=generator) * 4 + 4
    hidden = torch.randn(rows, 32, generator=generator)
    steps = range(0, rows, 64)
    return flips.Honest(
        stats=[row_stats(logits[first : first + 64]) for first in steps],
        hidden=[hidden[first : first + 64] for first in steps],
        traces=[np.arange(64) for _ in steps],
        positions=list(range(len(steps))),
        logits=logits[:64],
        tokens=[],
        prompts=[],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_flips_of_a_logit_by_two_to_the_fourth_and_more_are_found_and_lower_bits_are_not(dtype):
    """On normal logits of a small vocabulary, where a doubled logit often becomes the largest."""
    honest = honest_rows()
    guard, false = flips.taught_guard(honest)
    assert false == 0
    found, bits = flips.logit_flips(honest, guard, 20_000, dtype)
    assert found[bits >= 2].mean() > 0.95
    assert found[bits < 2].mean() < 0.5


def test_a_simulated_replica_without_faults_gives_no_finding():
    assert flips.simulated_findings(honest_rows(), 100_000) == (0, 0)


def test_a_simulated_tail_is_never_lighter_than_exponential():
    random = np.random.default_rng(0)
    light = np.sqrt(random.random(50_000))
    tail = flips.tail_of(light)
    assert tail.shape == 0
    heavy = flips.tail_of(random.pareto(3, 50_000))
    assert 0.1 < heavy.shape < 0.5
    drawn = flips.redrawn(light, tail, random)
    assert drawn.max() > 1
    assert (drawn[light <= tail.beyond] == light[light <= tail.beyond]).all()
