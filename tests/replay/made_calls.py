"""Attention calls made up for tests, and kernels that read them wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from checkengine.replay.judge.summation import textbook
from checkengine.replay.op_call import OpCall

Attend = Callable[[OpCall], torch.Tensor]


def made_call(
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    length: int = 45,
    tokens: int = 1,
    block: int = 8,
    width: int = 16,
    sharp: float = 1.0,
    mean: float = 0.0,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
) -> OpCall:
    """Four query heads over two KV heads; the row's blocks lie anywhere in memory, three others are nobody's."""
    random = torch.Generator().manual_seed(seed)
    pages = -(-length // block)
    blocks = pages + 3
    keys = torch.randn(blocks, block, 2, width, generator=random)
    values = torch.randn(blocks, block, 2, width, generator=random) + mean
    table = np.random.default_rng(seed).permutation(blocks - 1)[:pages].astype(np.int32)
    return OpCall(
        layer=0,
        row=0,
        kernel="made",
        query=(sharp * torch.randn(tokens, 4, width, generator=random)).to(dtype),
        keys=keys.to(dtype),
        values=values.to(dtype),
        blocks=np.arange(blocks, dtype=np.int32) + 5,
        table=table + 5,
        length=length,
        scaling=width**-0.5,
        window=window,
        softcap=softcap,
        sinks=torch.randn(4, generator=random).to(dtype) if sinks else None,
    )


def reading(change: Callable[[OpCall], OpCall]) -> Attend:
    """A kernel that is right on another call than it is given."""
    return lambda call: textbook(change(call))


def with_table(call: OpCall, page: int, block: int) -> OpCall:
    table = call.table.copy()
    table[page] = block
    return replace(call, table=table)


def one_past(call: OpCall) -> OpCall:
    """Reads the slot behind its end, in the last page or in the block behind it."""
    longer = replace(call, length=call.length + 1)
    if call.length % call.block_size == 0:
        longer = replace(longer, table=np.append(call.table, call.table[-1] + 1).astype(np.int32))
    return longer


def free_block(call: OpCall) -> int:
    return int(np.setdiff1d(call.blocks, call.table)[0])
