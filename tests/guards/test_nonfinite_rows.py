"""Every non-finite row is found in its step and named right: masks, shards and speculative verify rows included."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from checkengine.detectors.logits import RowStats, merge, row_stats
from checkengine.guards.finding import Finding
from checkengine.guards.nonfinite import NonFiniteGuard
from checkengine.guards.settings import UniformSettings
from checkengine.guards.step import StepView
from checkengine.guards.uniform import UniformGuard

ROWS, COLUMNS = 12, 700
LEVELS = ("screen", "full")


def view(
    stats: RowStats,
    *,
    tokens: Sequence[tuple[int, ...]] | None = None,
    masked: Sequence[bool] | None = None,
    stats_of: Sequence[int] | None = None,
) -> StepView:
    count = len(stats) if tokens is None else len(tokens)
    return StepView(
        step=3,
        time=0.0,
        sequences=tuple(f"s{row}" for row in range(count)),
        tokens=tuple(tokens or [(1,)] * count),
        stats=stats,
        prompt_lengths=np.zeros(count, np.int32),
        output_lengths=np.full(count, 10, np.int32),
        masked=None if masked is None else np.array(masked),
        stats_of=None if stats_of is None else np.array(stats_of, np.int32),
    )


def found(step: StepView) -> list[Finding]:
    return list(NonFiniteGuard().observe(step))


def logits_of(rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(rows)) * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("level", LEVELS)
def test_every_injected_fault_is_found_in_its_step_and_nothing_else(dtype, level):
    random = np.random.default_rng(0)
    for fault in (math.nan, -math.nan, math.inf, -math.inf):
        for share in (0.0, 0.5, 1.0):
            logits = logits_of().to(dtype)
            bad = int(random.integers(ROWS))
            places = random.permutation(COLUMNS)[: max(1, int(share * COLUMNS))]
            logits[bad, places] = fault
            (finding,) = found(view(row_stats(logits, level)))
            assert (finding.sequence, finding.step, finding.token) == (f"s{bad}", 3, 10)


@pytest.mark.parametrize("level", LEVELS)
def test_masked_rows_are_no_fault_where_the_engine_says_that_they_are_masked(level):
    logits = logits_of(4)
    logits[0, 20:] = -math.inf  # a grammar that leaves twenty tokens
    logits[1].masked_fill_(logits[1] < logits[1].topk(5).values[-1], -math.inf)  # top-k
    logits[2, [3, 4]] = -math.inf  # banned tokens
    logits[3, 1:] = -math.inf  # a forced token
    stats = row_stats(logits, level)
    assert found(view(stats, masked=[True] * 4)) == []
    assert [finding.sequence for finding in found(view(stats))] == ["s0", "s1", "s2", "s3"]
    assert list(UniformGuard(UniformSettings(), COLUMNS).observe(view(stats, masked=[True] * 4))) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_mask_hides_neither_nan_nor_infinity_nor_a_row_without_any_token(level):
    logits = logits_of(5)
    logits[:, 50:] = -math.inf
    logits[1, 7], logits[2, 600], logits[3, 7], logits[4] = math.nan, math.nan, math.inf, -math.inf
    names = [finding.sequence for finding in found(view(row_stats(logits, level), masked=[True] * 5))]
    assert names == ["s1", "s2", "s3", "s4"]


def test_a_mask_on_one_row_excuses_no_other_row():
    logits = logits_of(3)
    logits[0, 0] = logits[2, 0] = -math.inf
    names = [finding.sequence for finding in found(view(row_stats(logits), masked=[True, False, False]))]
    assert names == ["s2"]


def test_raw_logits_read_before_a_mask_give_no_finding_whatever_the_sampler_masks_later():
    logits = logits_of()
    stats = row_stats(logits)
    logits[:, 5:] = -math.inf
    assert found(view(stats)) == []


@pytest.mark.parametrize(
    ("bad_row", "sequence", "token", "rejected"),
    [(0, "s0", 10, False), (2, "s0", 12, False), (3, "s1", 10, False), (4, "s1", 11, True), (6, "s2", 10, False)],
)
def test_a_fault_on_a_verify_row_is_told_of_its_sequence_and_its_token(bad_row, sequence, token, rejected):
    """Three drafts a sequence at most: s0 took all of its tokens, s1 one of three, s2 has no drafts."""
    logits = logits_of(7)
    logits[bad_row, 30] = math.nan
    stats_of, tokens = [0, 0, 0, 1, 1, 1, 2], [(4, 5, 6), (7,), (8,)]
    (finding,) = found(view(row_stats(logits), tokens=tokens, stats_of=stats_of))
    assert (finding.sequence, finding.token) == (sequence, token)
    assert finding.evidence.get("rejected_draft", False) is rejected
    assert finding.evidence["nan"] == 1


def test_several_bad_verify_rows_of_one_sequence_are_one_finding_at_the_first_bad_token():
    logits = logits_of(4)
    logits[[1, 2, 3], 9] = math.inf
    (finding,) = found(view(row_stats(logits), tokens=[(1, 2, 3, 4)], stats_of=[0, 0, 0, 0]))
    assert finding.token == 11


def test_a_uniform_verify_row_is_told_of_its_sequence():
    logits = logits_of(5)
    logits[3] = 0.25
    step = view(row_stats(logits), tokens=[(1, 2), (3, 4, 5)], stats_of=[0, 0, 1, 1, 1])
    (finding,) = UniformGuard(UniformSettings(), COLUMNS).observe(step)
    assert (finding.sequence, finding.token) == ("s1", 11)


def test_a_fault_on_one_rank_of_a_sharded_vocabulary_is_found_on_its_row():
    logits = logits_of()
    logits[5, 600] = math.nan
    parts = [row_stats(logits[:, first : first + 350], first_column=first) for first in (0, 350)]
    assert [finding.sequence for finding in found(view(merge(parts)))] == ["s5"]
