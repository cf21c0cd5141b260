"""What a seal costs: hashing alone, and a move with seals beside one without, in interleaved pairs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np

from checkengine.benchmarks.figure import figure
from checkengine.detectors.seal import Cells, Seal, copy_tensor, hash_tensor
from checkengine.engine_shim.tiers.payload import Bits, Payload
from checkengine.engine_shim.tiers.sealing import Sealing

SHAPE = (30, 32, 3, 64)
"""One tensor of a block of the demo model: 30 layers, 32 tokens, 3 KV heads, 64 numbers."""
TENSORS = ("key", "value")
BLOCKS = 24


def seal_figures(pairs: int = 25) -> list[dict[str, Any]]:
    source = np.random.default_rng(0).normal(size=(BLOCKS, 2, *SHAPE)).astype(np.float32).view(np.uint32)
    target = np.zeros_like(source)

    def copy() -> None:
        for block in range(BLOCKS):
            np.copyto(target[block], source[block])

    def sealed_copy() -> None:
        for block in range(BLOCKS):
            for place in range(2):
                copy_tensor(source[block, place], target[block, place])

    def hashing() -> None:
        for block in range(BLOCKS):
            for place in range(2):
                hash_tensor(source[block, place])

    hashing()
    sealed_copy()
    copy()
    rates, ratios = [], []
    for _ in range(pairs):
        plain, sealed, hashed = timed(copy), timed(sealed_copy), timed(hashing)
        ratios.append(sealed / plain)
        rates.append(source.nbytes / hashed)
    return [
        figure("seal.hashing on one core", median(rates) / 1e9, "GB/s", 4, at_least=True),
        figure("seal.a copy in memory with its seal, beside one without", 100 * (median(ratios) - 1), "% more", 30),
        *pipelined_figures(source, pairs),
    ]


def pipelined_figures(source: np.ndarray[Any, np.dtype[np.uint32]], pairs: int) -> list[dict[str, Any]]:
    """The engine's own move of BLOCKS blocks, sealed on another thread, beside the same without seals: what the moving
    thread spends, and the time until the last seal is there, which takes a core that nobody else uses."""
    sealing, plain, one_pass = Sealing(pipelined=True), Unsealed(), Sealing()
    blocks = [dict(zip(TENSORS, block, strict=True)) for block in source]

    def seal_of(cells: Cells) -> Seal:
        return Seal(cells, "", SHAPE[1], "uint32", 0, "", "")

    def cost(mover: Sealing) -> tuple[float, float]:
        """CPU seconds of this thread, and seconds until the last seal is there. Copies are given up after each move, so
        that each finds the same memory: pages that are new to the process would cost more than copy and seal."""
        began, own = time.perf_counter(), time.thread_time()
        payloads = [mover.copied(block, seal_of) for block in blocks]
        spent = time.thread_time() - own
        for payload in payloads:
            assert payload.seal
        return spent, time.perf_counter() - began

    for mover in (plain, sealing, one_pass):
        cost(mover)
    spent, lasted, alone = [], [], []
    for _ in range(pairs):
        bare, bare_wall = cost(plain)
        own, wall = cost(sealing)
        spent.append(own / bare)
        lasted.append(wall / bare_wall)
        alone.append(cost(one_pass)[0] / cost(plain)[0])
    sealing.close()
    free = f"on {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}"
    return [
        figure("seal.a move sealed in one pass on its own thread", 100 * (median(alone) - 1), "% more", 30),
        figure("seal.a pipelined move, added to the moving thread", 100 * (median(spent) - 1), "% more", 5),
        figure("seal.a pipelined move, until its last seal is there", 100 * (median(lasted) - 1), "% more", 5)
        | {"peer": f"{free}: minimum", "peer_value": 100 * (min(lasted) - 1)},
    ]


class Unsealed(Sealing):
    """The same move without seals, for comparison."""

    def copied(self, bits: Mapping[str, Bits], seal_of: Callable[[Cells], Seal]) -> Payload:
        copies = {name: np.empty_like(tensor) for name, tensor in bits.items()}
        for name, tensor in bits.items():
            np.copyto(copies[name], tensor)
        return Payload(copies, NOTHING)


NOTHING = Seal({}, "", 0, "", 0, "", "")


def timed(work: Callable[[], object]) -> float:
    """CPU seconds of this thread."""
    before = time.thread_time()
    work()
    return time.thread_time() - before
