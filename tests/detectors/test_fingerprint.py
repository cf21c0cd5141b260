"""The fingerprint of a row: what it must not miss, and what it must not notice."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.detectors import row_stats
from checkengine.detectors.logits.fingerprint import OFFSET, column_keys, fingerprint_of_bits

COLUMNS = 4096


def fingerprints(logits: torch.Tensor, backend: str = "numba") -> np.ndarray:
    return row_stats(logits, "full", backend).fingerprint


def terms(bits: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The definition again, written here by hand."""
    product = (bits.astype(np.uint64) + np.uint64(OFFSET)) * column_keys(columns.max() + 1)[columns]
    return product ^ (product >> np.uint64(32))


def test_backends_compute_the_definition():
    logits = torch.randn(3, 5000)
    bits = logits.numpy().view(np.uint32).astype(np.uint64)
    expected = [fingerprint_of_bits(row) for row in bits]
    assert fingerprints(logits).tolist() == fingerprints(logits, "torch").tolist() == expected
    half = logits.half()
    expected = [fingerprint_of_bits(row) for row in half.numpy().view(np.uint16).astype(np.uint64)]
    assert fingerprints(half).tolist() == fingerprints(half, "torch").tolist() == expected


def test_partial_sums_of_a_sharded_vocabulary_add_up():
    bits = torch.randn(1, 5000).numpy().view(np.uint32).astype(np.uint64)[0]
    whole = fingerprint_of_bits(bits)
    parts = [fingerprint_of_bits(bits[first : first + 1250], first) for first in range(0, 5000, 1250)]
    assert sum(parts) % 2**64 == whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_no_single_bit_flip_of_any_element_is_missed(dtype):
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    row = torch.randn(64).to(dtype)
    width = row.element_size() * 8
    flips = torch.ones(width, dtype=torch.int64) << torch.arange(width)
    flipped = row.view(words[row.element_size()])[None, :].repeat(width * 64, 1)
    for place in range(64):
        at = slice(place * width, (place + 1) * width)
        flipped[at, place] ^= flips.to(flipped.dtype)
    rows = torch.cat([row[None, :], flipped.view(dtype)])
    was_nan = rows[1:].isnan().any(-1).numpy()
    found = fingerprints(rows, "torch" if dtype == torch.float64 else "numba")
    assert (found[1:][~was_nan] != found[0]).all()
    assert (found[1:][was_nan] != found[0]).all()


def test_a_million_pairs_of_flips_swaps_and_shifts_are_all_seen():
    """Two changed elements cancel only if their terms' differences do; a million of each kind are tried."""
    generator = np.random.default_rng(5)
    tries = 1_000_000
    bits = (generator.standard_normal((2, tries)).astype(np.float32) * 4).view(np.uint32)
    first = generator.integers(0, 151_936, tries)
    second = (first + generator.integers(1, 151_936, tries)) % 151_936
    before = terms(bits[0], first) + terms(bits[1], second)
    flip = np.uint32(1) << generator.integers(0, 32, tries).astype(np.uint32)
    same_flip = terms(bits[0] ^ flip, first) + terms(bits[1] ^ flip, second)
    sign_flip = terms(bits[0] ^ np.uint32(1 << 31), first) + terms(bits[1] ^ np.uint32(1 << 31), second)
    swap = terms(bits[1], first) + terms(bits[0], second)
    up_and_down = terms(bits[0] + np.uint32(1), first) + terms(bits[1] - np.uint32(1), second)
    for name, after in (("flip", same_flip), ("sign", sign_flip), ("swap", swap), ("up and down", up_and_down)):
        different = bits[0] != bits[1] if name == "swap" else np.ones(tries, bool)
        assert (after != before)[different].all(), name


@settings(max_examples=60, deadline=None)
@given(st.integers(1, COLUMNS - 1), st.integers(0, 2**31))
def test_a_rotated_row_has_another_fingerprint(shift, seed):
    row = torch.randn(1, COLUMNS, generator=torch.Generator().manual_seed(seed))
    assert fingerprints(row)[0] != fingerprints(row.roll(shift, -1))[0]


def test_reversed_and_block_swapped_rows_have_other_fingerprints():
    row = torch.randn(1, COLUMNS)
    swapped = torch.cat([row[:, 2048:], row[:, :2048]], 1)
    assert len({int(fingerprints(r)[0]) for r in (row, row.flip(-1), swapped)}) == 3


def test_nan_payloads_and_signs_do_not_matter_but_signed_zeros_do():
    payloads = torch.tensor([0x7FC00000, 0x7F800001, -0x00400000, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    rows = torch.randn(1, 3000).repeat(4, 1)
    rows[:, 17] = payloads
    assert rows[:, 17].isnan().all()
    for backend in ("numba", "torch"):
        assert len(set(fingerprints(rows, backend).tolist())) == 1
    zeros = torch.zeros(2, 3000)
    zeros[1, 17] = -0.0
    assert len(set(fingerprints(zeros).tolist())) == 2


def test_rows_of_equal_values_of_different_height_differ():
    rows = torch.tensor([0.0, 1.0, 2.0, math.inf, -math.inf, math.nan])[:, None].repeat(1, 3000)
    assert len(set(fingerprints(rows).tolist())) == 6
