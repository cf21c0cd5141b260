"""Shards of a vocabulary: their statistics join to those of the whole, in any order and grouping."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors.logits import RowStats, merge, row_stats

CLOSE = ("logsumexp", "entropy", "log_total")
VALUES = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 3e38, -3e38]),
    st.floats(width=32, min_value=-400, max_value=400),
)


def assert_same(merged: RowStats, whole: RowStats) -> None:
    for field in set(RowStats.__dataclass_fields__) - {"level"}:
        left, right = getattr(merged, field), getattr(whole, field)
        if right is None:
            assert left is None
        elif field in CLOSE:
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5, err_msg=field)
        else:
            assert left.dtype == right.dtype, field
            np.testing.assert_array_equal(left, right, err_msg=field)


def shards(logits: torch.Tensor, cuts: list[int], level: str = "full", backend: str = "auto") -> list[RowStats]:
    edges = [0, *sorted(cuts), logits.shape[1]]
    spans = [(first, end) for first, end in itertools.pairwise(edges) if end > first]
    return [row_stats(logits[:, first:end], level, backend, first_column=first) for first, end in spans]


@settings(max_examples=150, deadline=None)
@given(st.lists(VALUES, min_size=2, max_size=24), st.lists(st.integers(1, 23), max_size=4), st.randoms())
def test_any_cut_order_and_grouping_of_a_row_merges_to_the_whole(values, cuts, random):
    logits = torch.tensor([values])
    parts = shards(logits, [cut for cut in cuts if cut < len(values)])
    random.shuffle(parts)
    whole = row_stats(logits)
    assert_same(merge(parts), whole)
    left = right = parts[0]
    for part in parts[1:]:
        left, right = merge([left, part]), merge([part, right])
    assert_same(left, whole)
    assert_same(right, whole)
    middle = len(parts) // 2
    if middle:
        assert_same(merge([merge(parts[:middle]), merge(parts[middle:])]), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("level", ["screen", "full"])
def test_eight_ranks_of_a_real_vocabulary_merge_to_the_whole(dtype, level):
    logits = (torch.randn(4, 49_157, generator=torch.Generator().manual_seed(3)) * 4).to(dtype)
    logits[1, 40_000], logits[2, 3] = math.nan, -math.inf
    cuts = [49_157 * rank // 8 for rank in range(1, 8)]
    for backend in ("numba", "torch"):
        assert_same(merge(shards(logits, cuts, level, backend)), row_stats(logits, level, backend))


def test_equal_maxima_of_two_shards_take_the_lowest_column_and_have_no_margin():
    logits = torch.zeros(1, 100)
    logits[0, [30, 80]] = 5.0
    merged = merge(shards(logits, [50])[::-1])
    assert (merged.argmax[0], merged.margin[0], merged.runner_up[0]) == (30, 0, 5)


def test_a_shard_of_nothing_but_masks_leaves_the_distribution_of_the_others():
    logits = torch.randn(2, 64)
    logits[:, :32] = -math.inf
    assert_same(merge(shards(logits, [32])), row_stats(logits))


def test_what_cannot_be_merged_is_refused_with_what_was_expected():
    logits = torch.randn(2, 8)
    with pytest.raises(ValueError, match="no part to merge"):
        merge([])
    with pytest.raises(ValueError, match="one level and the same rows"):
        merge([row_stats(logits), row_stats(logits, "screen")])
    with pytest.raises(ValueError, match="one level and the same rows"):
        merge([row_stats(logits), row_stats(logits[:1])])
    bare = RowStats("screen", np.zeros(1, bool), np.zeros(1, np.float32), np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="no invalid"):
        merge([bare, bare])
