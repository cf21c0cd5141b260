"""Flipped exponent bits in logits and hidden states, seen in sizes that the replica does not reach."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from checkengine.detectors.logits import RowStats, row_stats
from checkengine.guards.finding import Finding, Severity, cause_rank
from checkengine.guards.magnitude import MagnitudeGuard
from checkengine.guards.settings import GuardsSettings, MagnitudeSettings
from checkengine.guards.step import StepView

COLUMNS, ROWS = 800, 64
BITS_OF_TWO_TO_THE_16 = 1 << 27


def logits_of(generator: torch.Generator, rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, COLUMNS, generator=generator) * 3 + 5


def view(stats: RowStats | None, *, rows: int = ROWS, step: int = 0, before: int = 0, **more: object) -> StepView:
    return StepView(
        step=step,
        time=0.0,
        sequences=tuple(f"{step}-{row}" for row in range(rows)),
        tokens=((1,),) * rows,
        stats=stats,
        prompt_lengths=np.zeros(rows, np.int32),
        output_lengths=np.full(rows, before, np.int32),
        **more,  # type: ignore[arg-type]
    )


def taught(generator: torch.Generator, level: str = "full", steps: int = 40) -> tuple[MagnitudeGuard, list[Finding]]:
    guard = MagnitudeGuard(MagnitudeSettings())
    found: list[Finding] = []
    for step in range(steps):
        found += guard.observe(view(row_stats(logits_of(generator), level), step=step))  # type: ignore[arg-type]
    return guard, found


def flip(logits: torch.Tensor, row: int, column: int, bit: int = BITS_OF_TWO_TO_THE_16) -> None:
    logits[row].view(torch.int32)[column] ^= bit


@pytest.mark.parametrize("level", ["screen", "full"])
def test_a_flipped_exponent_bit_of_one_logit_is_found_on_its_row_in_its_step(level):
    guard, healthy = taught(torch.Generator().manual_seed(0), level)
    assert healthy == []
    logits = logits_of(torch.Generator().manual_seed(1))
    logits[9, 77] = 6.0
    flip(logits, 9, 77)
    (finding,) = guard.observe(view(row_stats(logits, level), step=99, before=4))
    assert (finding.kind, finding.sequence, finding.token) == ("logits.magnitude", "99-9", 4)
    assert finding.severity is Severity.ERROR
    assert finding.evidence["maximum"] == pytest.approx(6 * 2**16, rel=1e-3)
    assert finding.evidence["maximum_limit"] < 60


def test_an_absurd_logit_is_found_before_anything_has_been_learnt():
    guard = MagnitudeGuard(MagnitudeSettings())
    logits = logits_of(torch.Generator().manual_seed(0))
    logits[3, 5] = 2e4
    assert [f.sequence for f in guard.observe(view(row_stats(logits)))] == ["0-3"]


def test_a_margin_that_no_healthy_row_has_is_found_where_the_logit_itself_could_be():
    guard, _ = taught(torch.Generator().manual_seed(0))
    logits = logits_of(torch.Generator().manual_seed(1)).clamp(max=6)
    logits[2, 5] = 24.0
    (finding,) = guard.observe(view(row_stats(logits), step=99))
    assert "margin_limit" in finding.evidence
    assert "maximum_limit" not in finding.evidence


def test_a_fault_is_told_once_a_sequence_and_again_after_it_is_forgotten():
    guard, _ = taught(torch.Generator().manual_seed(0))
    logits = logits_of(torch.Generator().manual_seed(1))
    logits[9, 77] = 1e5
    stats = row_stats(logits)
    assert [len(list(guard.observe(view(stats, step=99)))) for _ in range(2)] == [1, 0]
    guard.forget("99-9")
    assert len(list(guard.observe(view(stats, step=99)))) == 1


def test_rows_that_are_not_finite_are_left_to_the_guard_of_that_and_not_learnt_from():
    guard, _ = taught(torch.Generator().manual_seed(0))
    before = guard._logits.limits.copy()
    for step in range(100, 140):
        logits = logits_of(torch.Generator().manual_seed(step))
        logits[::2, 3], logits[1::2, 3] = float("inf"), float("nan")
        assert list(guard.observe(view(row_stats(logits), step=step))) == []
    np.testing.assert_allclose(guard._logits.limits, before, rtol=0.3)


def test_masked_rows_are_read_by_their_largest_logit_alone():
    guard, _ = taught(torch.Generator().manual_seed(0))
    logits = logits_of(torch.Generator().manual_seed(1))
    logits[0, 10:] = -float("inf")
    logits[1, 10:] = torch.finfo(torch.float32).min
    logits[2, 10:] = -1e9
    logits[3, 1:] = -float("inf")
    masked = np.arange(ROWS) < 4
    assert list(guard.observe(view(row_stats(logits), step=99, masked=masked))) == []
    logits[0, 4] = logits[1, 4] = 1e6
    found = list(guard.observe(view(row_stats(logits), step=99, masked=masked)))
    assert [finding.sequence for finding in found] == ["99-0", "99-1"]


def test_a_padded_vocabulary_of_very_negative_logits_is_what_is_usual_here():
    guard = MagnitudeGuard(MagnitudeSettings())
    generator = torch.Generator().manual_seed(0)
    for step in range(40):
        logits = logits_of(generator)
        logits[:, -7:] = -1e5
        assert list(guard.observe(view(row_stats(logits), step=step))) == []
    logits[5, 3] = 5000.0
    assert [finding.sequence for finding in guard.observe(view(row_stats(logits), step=99))] == ["99-5"]


def test_log_probabilities_in_place_of_logits_give_no_finding():
    guard = MagnitudeGuard(MagnitudeSettings())
    generator = torch.Generator().manual_seed(0)
    for step in range(60):
        logits = logits_of(generator).log_softmax(-1)
        assert list(guard.observe(view(row_stats(logits), step=step))) == []


def test_a_verify_row_is_told_of_its_sequence_and_its_token():
    guard, _ = taught(torch.Generator().manual_seed(0))
    logits = logits_of(torch.Generator().manual_seed(1), 5)
    logits[3, 7] = 1e5
    step = StepView(
        step=1,
        time=0.0,
        sequences=("a", "b"),
        tokens=((1, 2), (3, 4, 5)),
        stats=row_stats(logits),
        prompt_lengths=np.zeros(2, np.int32),
        output_lengths=np.array([0, 20], np.int32),
        stats_of=np.array([0, 0, 1, 1, 1], np.int32),
    )
    (finding,) = guard.observe(step)
    assert (finding.sequence, finding.token) == ("b", 21)


def test_a_long_loop_does_not_set_what_is_usual():
    guard, _ = taught(torch.Generator().manual_seed(0))
    before = guard._logits.limits.copy()
    for step in range(300):
        stats = row_stats(torch.zeros(ROWS, COLUMNS), "full")
        list(guard.observe(view(stats, step=1000, before=300 + step)))
    np.testing.assert_array_equal(guard._logits.limits, before)


def test_a_flipped_element_of_the_hidden_state_is_found_though_the_logits_look_ordinary():
    generator = torch.Generator().manual_seed(0)
    usual = torch.linspace(0.5, 40, 96)
    guard = MagnitudeGuard(MagnitudeSettings())
    for step in range(60):
        hidden = torch.randn(ROWS, 96, generator=generator) * usual
        stats = row_stats(logits_of(generator))
        assert list(guard.observe(view(stats, step=step, hidden=hidden))) == []
    hidden = torch.randn(ROWS, 96, generator=generator) * usual
    hidden[4, 0] = 0.5 * 256
    hidden[5, 1] = float("inf")
    found = list(guard.observe(view(row_stats(logits_of(generator)), step=99, hidden=hidden)))
    assert [finding.sequence for finding in found] == ["99-4", "99-5"]
    assert found[0].evidence["hidden"] > found[0].evidence["hidden_limit"]


def test_a_hidden_state_in_bfloat16_is_read_too():
    guard = MagnitudeGuard(MagnitudeSettings())
    assert list(guard.observe(view(None, hidden=torch.ones(ROWS, 8, dtype=torch.bfloat16)))) == []


def test_it_observes_by_default_and_ranks_behind_the_exact_guards_of_logits():
    assert GuardsSettings().of("magnitude").action == "observe"
    assert cause_rank("logits.uniform") < cause_rank("logits.magnitude") < cause_rank("token.impossible")
