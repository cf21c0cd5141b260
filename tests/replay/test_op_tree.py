"""Hashes of ranges of an op's output: the root is the op's own, and halves find what differs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.benchmarks.op_hashes import op_hash_figures
from checkengine.engine_shim.engine.op_hashes import OpHashes
from checkengine.replay.op_tree import OpTree, diverging

SHAPES = [(1, 9, 64), (5, 4, 16), (33, 48), (1, 1)]


def output_of(shape, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_root_is_the_hash_that_the_engine_records_of_the_op(shape, dtype: torch.dtype) -> None:
    packed = torch.cat([output_of(shape, 1, dtype), output_of(shape, 2, dtype)])
    ops = OpHashes(np.array([0, shape[0], 2 * shape[0]], np.int32))
    ops("attention", 3, packed)
    assert [OpTree(part).root for part in packed.split(shape[0])] == [entry.fingerprint for entry in ops.entries]


@given(st.integers(1, 300), st.data())
@settings(max_examples=60, deadline=None)
def test_ranges_add_up_in_whatever_order_and_the_first_and_last_difference_are_found(count: int, data) -> None:
    output = output_of((1, count), count)
    tree = OpTree(output)
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=5)))
    parts = [tree.range(a, b) for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
    assert sum(reversed(parts)) % 2**64 == tree.root
    places = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=4)))
    changed = output.clone()
    changed[0, places] += 1.0
    found = diverging(tree.range, OpTree(changed).range, count)
    assert found is not None
    assert (found.first, found.last) == (places[0], places[-1])
    assert found.comparisons <= math.ceil(math.log2(count)) if count > 1 else found.comparisons == 0


def test_equal_outputs_diverge_nowhere_and_nan_payloads_are_one() -> None:
    one, other = output_of((2, 8)), output_of((2, 8))
    one[1, 3], other.view(torch.int32)[1, 3] = math.nan, 0x7FC0BEEF
    assert diverging(OpTree(one).range, OpTree(other).range, 16) is None


def test_a_range_outside_of_the_output_is_refused() -> None:
    with pytest.raises(ValueError, match="no range"):
        OpTree(output_of((1, 4))).range(2, 5)


def test_no_flip_swap_or_rotation_is_missed_or_misplaced_in_a_slice_of_the_bench() -> None:
    figures = list(op_hash_figures(quick=True))
    assert all(figure["ok"] for figure in figures), [figure for figure in figures if not figure["ok"]]
