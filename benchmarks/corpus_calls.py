"""Attention calls made up and run alone: over-reads at every length, and right calls that must never be convicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.figure import figure
from checkengine.engine_shim.engine.op_calls import FAULTS, attend
from checkengine.engine_shim.faults import Fault, describe_fault
from checkengine.engine_shim.faults.over_read import OverRead, OverReadKeys, OverReadPrefill, OverReadValues
from checkengine.replay.judge.fills import FINITE_FILLS, NAN_FILL
from checkengine.replay.op_call import OpCall

BLOCK = 16
SHORTEST, LONGEST = 17, 131_072
CLEAN = 10_000
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def call_figures(*, quick: bool = False) -> Iterator[dict[str, Any]]:
    yield from over_read_figures(lengths(every=8 if quick else 1))
    yield clean_figure(CLEAN // 20 if quick else CLEAN)


def lengths(every: int = 1) -> list[int]:
    """Every length to 80, around every power of two, and some in between, to LONGEST."""
    powers = [2**power + shift for power in range(7, 18) for shift in (-1, 0, 1)]
    random = np.random.default_rng(0)
    between = np.exp(random.uniform(np.log(80), np.log(LONGEST), 40)).astype(int).tolist()
    found = sorted({length for length in [*range(SHORTEST, 81), *powers, *between] if length <= LONGEST})
    return found[::every] if found[::every][-1] == LONGEST else [*found[::every], LONGEST]


def over_read_figures(chosen: Sequence[int]) -> Iterator[dict[str, Any]]:
    for made in (OverRead, OverReadKeys, OverReadValues, OverReadPrefill):
        queries = 5 if made is OverReadPrefill else 1
        caught = sum(
            depends_on_unowned(synthetic_call(length, seed=length, queries=queries, faults=[made(block_size=BLOCK)]))
            for length in chosen
        )
        name = f"faults.caught, {made.name} of one slot at lengths {chosen[0]} to {chosen[-1]:,}"
        yield figure(name, caught, "calls", len(chosen), at_least=True)


def clean_figure(wanted: int) -> dict[str, Any]:
    """Right calls of random shape, dtype, window, cap and sinks; none may depend on what it does not own."""
    random = np.random.default_rng(1)
    wrong = sum(depends_on_unowned(random_call(random, seed)) for seed in range(wanted))
    return figure(f"faults.false_convictions, {wanted:,} clean calls under three fills", wrong, "calls", 0)


def depends_on_unowned(call: OpCall) -> bool:
    """The judge's fills, on one call: other bits under another filling of what it does not own. NaN is kept to slots
    that are not the row's at all: what its window has left behind, a kernel may read and mask."""
    outputs = [attend(call.filled(call.hidden, pattern)) for pattern in FINITE_FILLS]
    outputs.append(attend(call.filled(call.hidden, FINITE_FILLS[0]).filled(call.unowned, NAN_FILL)))
    return any(not same_bits(outputs[0], other) for other in outputs[1:])


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return bool(torch.equal(left.contiguous().view(words), right.contiguous().view(words)))


def random_call(random: np.random.Generator, seed: int) -> OpCall:
    length = int(random.integers(1, 200))
    kv_heads = int(random.choice([1, 2]))
    heads = kv_heads * int(random.choice([1, 2, 4]))
    return synthetic_call(
        length,
        seed=seed,
        queries=1 if random.random() < 0.6 else int(random.integers(1, min(length, 12) + 1)),
        dim=int(random.choice([4, 8, 16])),
        heads=heads,
        kv_heads=kv_heads,
        dtype=DTYPES[int(random.integers(len(DTYPES)))],
        window=int(random.integers(1, 64)) if random.random() < 0.3 else None,
        softcap=float(random.uniform(1, 30)) if random.random() < 0.2 else None,
        sinks=torch.from_numpy(random.standard_normal(heads, np.float32)) if random.random() < 0.2 else None,
    )


def synthetic_call(
    length: int,
    *,
    seed: int,
    queries: int = 1,
    dim: int = 8,
    heads: int = 1,
    kv_heads: int = 1,
    dtype: torch.dtype = torch.float32,
    faults: Sequence[Fault] = (),
    **more: Any,
) -> OpCall:
    """Pages in random order, but for the last, which lies before a page that nobody owns."""
    pages = -(-length // BLOCK)
    generator = torch.Generator().manual_seed(seed)
    shape = (pages + 2, BLOCK, kv_heads, dim)
    table = np.append(np.random.default_rng(seed).permutation(pages - 1), pages).astype(np.int32)
    return OpCall(
        layer=0,
        row=0,
        kernel="paged",
        query=torch.randn(queries, heads, dim, generator=generator).to(dtype),
        keys=torch.randn(shape, generator=generator).to(dtype),
        values=torch.randn(shape, generator=generator).to(dtype),
        blocks=np.arange(pages + 2, dtype=np.int32),
        table=table,
        length=length,
        scaling=dim**-0.5,
        options={FAULTS: [describe_fault(fault) for fault in faults]},
        **more,
    )
