"""The same hashes on CUDA and ROCm, in one reading of the block and without waiting for the device.

Importing this module needs triton; whoever has no GPU needs neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from checkengine.detectors.logits.torch_backend import device_keys

CELLS = 32
"""Cells that a program reads at a time."""


def kernel(function: Callable[..., Any]) -> Any:
    return triton.jit(function)


@kernel
def _hash_cells(
    words: tl.tensor, keys: tl.tensor, hashes: tl.tensor, cells: tl.tensor, width: tl.tensor, CELLS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:  # fmt: skip
    cell = tl.program_id(0).to(tl.int64) * CELLS + tl.arange(0, CELLS)
    column = tl.arange(0, LANES)
    inside = (cell < cells)[:, None] & (column < width)[None, :]
    word = tl.load(words + cell[:, None] * width + column[None, :], mask=inside, other=0).to(tl.uint64, bitcast=True)
    key = tl.load(keys + column, mask=column < width, other=0).to(tl.uint64, bitcast=True)
    product = ((word ^ (word >> 32)) + 0x9E3779B97F4A7C15) * key[None, :]
    term = tl.where(inside, (product ^ (product >> 32)).to(tl.int64, bitcast=True), 0)
    tl.store(hashes + cell, tl.sum(term, 1), mask=cell < cells)


def hash_tensor(vectors: torch.Tensor) -> torch.Tensor:
    """Shape (layers, tokens, heads, dim) on the device to hashes (layers, tokens, heads): int64, same bits as uint64.

    Enqueued on the current stream. The bytes of a vector are a multiple of eight, as those of every real head are;
    ValueError otherwise.
    """
    width = vectors.shape[-1] * vectors.dtype.itemsize // 8
    if width * 8 != vectors.shape[-1] * vectors.dtype.itemsize:
        raise ValueError(f"a vector of {vectors.shape[-1]} elements of {vectors.dtype} is no whole number of 8 bytes")
    words = vectors.contiguous().view(torch.int64).reshape(-1, width)
    hashes = torch.empty(len(words), dtype=torch.int64, device=vectors.device)
    if len(words):
        _hash_cells[(triton.cdiv(len(words), CELLS),)](
            words,
            device_keys(width, vectors.device),
            hashes,
            len(words),
            width,
            CELLS=CELLS,
            LANES=triton.next_power_of_2(width),
        )
    return hashes.reshape(vectors.shape[:-1])
