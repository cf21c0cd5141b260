"""How many threads torch gets.

Two OpenMP threads on cores that others use as well can wait for each other at every barrier: on a busy machine two
threads were seen ten times slower than one. So the engine measures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from checkengine.engine_shim.engine.batch import PackedBatch
from checkengine.engine_shim.engine.kv_memory import KVLayout, KVMemory
from checkengine.engine_shim.engine.runner import ModelRunner

RUNS = 4
_ROWS = 16
HOPELESS = 2.0
"""A count this many times slower in one run than the best so far is not tried again."""


def usable_cores() -> int:
    """Cores of this process, or OMP_NUM_THREADS where that is set."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def decode_step(model: Any, layout: KVLayout, block_size: int) -> Callable[[], object]:
    """A step of 16 decode rows on memory of its own, to measure and to warm up with."""
    memory = KVMemory(layout, _ROWS, block_size)
    runner = ModelRunner(model, memory)
    batch = PackedBatch(
        step=0,
        handles=np.arange(_ROWS, dtype=np.int32),
        query_lengths=np.ones(_ROWS, np.int32),
        starts=np.full(_ROWS, block_size - 1, np.int32),
        samples=np.ones(_ROWS, np.bool_),
        token_ids=np.zeros(_ROWS, np.int32),
        tables=np.arange(_ROWS, dtype=np.int32)[:, None],
        block_size=block_size,
    )
    return lambda: runner.forward(batch)


def fastest_threads(run: Callable[[], object], most: int) -> int:
    """The count among 1, 2, 4 … `most` with which `run` takes the shortest time in all of a few runs."""
    counts = sorted({count for count in (1, 2, 4, 8, 16, 32, 64) if count < most} | {most})
    seconds = {count: _seconds(run, count, RUNS) for count in counts[:1]}
    for count in counts[1:]:
        best = min(seconds.values())
        first = _seconds(run, count, 1)
        seconds[count] = first * RUNS if first * RUNS > HOPELESS * best else first + _seconds(run, count, RUNS - 1)
    return min(counts, key=lambda count: seconds[count])


def _seconds(run: Callable[[], object], threads: int, runs: int) -> float:
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    for _ in range(runs):
        run()
    return time.perf_counter() - begin
