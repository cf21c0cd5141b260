"""What a seal costs: hashing alone, and a move with seals beside one without, in interleaved pairs."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from checkengine.benchmarks.figure import figure
from checkengine.detectors.seal import copy_tensor, hash_tensor

SHAPE = (30, 32, 3, 64)
"""One tensor of a block of the demo model: 30 layers, 32 tokens, 3 KV heads, 64 numbers."""
BLOCKS = 24


def seal_figures(pairs: int = 15) -> list[dict[str, Any]]:
    source = np.random.default_rng(0).normal(size=(BLOCKS, *SHAPE)).astype(np.float32).view(np.uint32)
    target = np.zeros_like(source)

    def copy() -> None:
        for block in range(BLOCKS):
            target[block] = source[block]

    def sealed_copy() -> None:
        for block in range(BLOCKS):
            copy_tensor(source[block], target[block])

    def hashing() -> None:
        for block in range(BLOCKS):
            hash_tensor(source[block])

    hashing()
    copy()
    rates, ratios = [], []
    for _ in range(pairs):
        plain, sealed, hashed = timed(copy), timed(sealed_copy), timed(hashing)
        ratios.append(sealed / plain)
        rates.append(source.nbytes / hashed)
    return [
        figure("seal.hashing on one core", median(rates) / 1e9, "GB/s", 4, at_least=True),
        figure("seal.a copy in memory with its seal, beside one without", 100 * (median(ratios) - 1), "% more", 30),
    ]


def timed(work: Callable[[], object]) -> float:
    """CPU seconds of this thread."""
    before = time.thread_time()
    work()
    return time.thread_time() - before
