"""The judge: does rounding ever pass its bound, how tight is the bound, and how long does judging a step take?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.figure import figure
from checkengine.replay.judge.bound import bounded
from checkengine.replay.judge.summation import ORDERS
from checkengine.replay.op_call import OpCall

ELEMENTS = 1_000_000
"""Healthy outputs in all, over the orders and dtypes."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TIGHT = 20.0
"""Likely bound over observed error, in the median."""
LENGTHS = (17, 64, 200, 513, 1024)
SHAPES: tuple[dict[str, Any], ...] = ({}, {"window": 48}, {"softcap": 20.0}, {"sinks": True})


def judge_figures(
    path: Path | None = None, *, elements: int = ELEMENTS, model: bool = True
) -> Iterator[dict[str, Any]]:
    """`model` False leaves the demo model out."""
    for dtype in DTYPES:
        yield from bound_figures(dtype, healthy(dtype, elements // len(DTYPES)))
    if model:
        from checkengine.benchmarks.judge_step import step_figures

        yield from step_figures(path)


@dataclass(slots=True)
class Seen:
    elements: int = 0
    beyond: int = 0
    beyond_likely: int = 0
    worst: float = 0.0
    tightness: list[float] = field(default_factory=list)
    """Median of likely bound over error, a call and order each."""


def healthy(dtype: torch.dtype, wanted: int) -> Seen:
    """Random calls in all orders of summation until there are so many outputs."""
    seen, seed = Seen(), 0
    while seen.elements < wanted:
        call = random_call(dtype, seed, LENGTHS[seed % len(LENGTHS)], **SHAPES[seed % len(SHAPES)])
        found = bounded(call, elements=float(ELEMENTS))
        for attend in ORDERS.values():
            output = attend(call)
            ratio, likely = found.ratio(output), found.likely_ratio(output)
            seen.elements += output.numel()
            seen.beyond += int((ratio > 1).sum())
            seen.beyond_likely += int((likely > 1).sum())
            seen.worst = max(seen.worst, float(ratio.max()))
            positive = likely[likely > 0]
            seen.tightness += [1 / float(positive.median())] if len(positive) else []
        seed += 1
    return seen


def bound_figures(dtype: torch.dtype, seen: Seen) -> list[dict[str, Any]]:
    name = str(dtype).removeprefix("torch.")
    tight = round(float(np.median(seen.tightness)), 1)
    return [
        figure(
            f"judge.bound.violations, {name}, of {seen.elements:,} outputs in {len(ORDERS)} orders", seen.beyond, "", 0
        ),
        figure(f"judge.bound.violations of the likely bound, {name}", seen.beyond_likely, "", 0),
        figure(f"judge.bound.likely bound over error, median, {name}", tight, "×", TIGHT),
    ]


def random_call(
    dtype: torch.dtype,
    seed: int,
    length: int,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    tokens: int = 12,
    heads: int = 8,
    width: int = 64,
    block: int = 16,
) -> OpCall:
    """Keys with a few large channels and values with a mean, as models have them; blocks anywhere in memory."""
    random = torch.Generator().manual_seed(seed)
    pages = -(-length // block)
    channels = 1 + 4 * (torch.rand(width, generator=random) > 0.95)
    keys = torch.randn(pages, block, heads // 4, width, generator=random) * channels
    values = torch.randn(pages, block, heads // 4, width, generator=random) + 0.5 * torch.randn(width, generator=random)
    query = torch.randn(min(tokens, length), heads, width, generator=random) * (0.3 + seed % 3)
    table = np.random.default_rng(seed).permutation(pages).astype(np.int32)
    return OpCall(
        layer=0,
        row=0,
        kernel="made",
        query=query.to(dtype),
        keys=keys.to(dtype),
        values=values.to(dtype),
        blocks=np.arange(pages, dtype=np.int32),
        table=table,
        length=length,
        scaling=width**-0.5,
        window=window,
        softcap=softcap,
        sinks=torch.randn(heads, generator=random).to(dtype) if sinks else None,
    )
