"""Step records of a replica under load, without an engine: what the audit's schedule sees of it.

Prompts and outputs are as long as in a public guest lecture on inference systems (input p50 512 and p99 4096 tokens,
output p50 256 and p99 1024; both log-normal here), 60 % of the prompts begin behind a cached prefix. The batch is
always full: a sequence that ends is followed by the next one, whose prompt is computed in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkengine.replay.record import Ints, StepRecord, no_blocks

NORMAL_99 = 2.326


@dataclass(frozen=True, slots=True)
class Load:
    rows: int = 16
    block_size: int = 32
    chunk: int = 256
    """Tokens of a prefill chunk."""
    prefix_hits: float = 0.6
    preemptions: float = 2e-4
    """A step."""


class Traffic:
    """An endless stream of records; token ids are zeros, since no stratum looks at them."""

    def __init__(self, load: Load, seed: int = 0) -> None:
        self._load, self._random = load, np.random.default_rng(seed)
        rows = load.rows
        self._handles: Ints = np.arange(rows, dtype=np.int32)
        self._next = rows
        self._prompts, self._limits = self._lengths(rows)
        self._computed: NDArray[np.int64] = (self._random.random(rows) * self._limits).astype(np.int64)
        self._blocks = self._random.permutation(rows * 4 * (8192 // load.block_size)).astype(np.int32)

    def _lengths(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of prompts, and of prompts with their outputs."""
        prompts = self._random.lognormal(math.log(512), math.log(8) / NORMAL_99, count).clip(16, 4096)
        outputs = self._random.lognormal(math.log(256), math.log(4) / NORMAL_99, count).clip(8, 2048)
        return prompts.astype(np.int64), (prompts + outputs).astype(np.int64)

    def records(self, steps: int) -> Iterator[StepRecord]:
        for step in range(steps):
            self._renew()
            left = self._prompts - self._computed
            counts = np.where(left > 1, np.minimum(left, self._load.chunk), 1).astype(np.int32)
            starts = self._computed.astype(np.int32)
            ends = starts + counts
            yield StepRecord(
                step=step,
                time_ns=step,
                handles=self._handles.copy(),
                query_lengths=counts,
                starts=starts,
                samples=ends >= self._prompts,
                token_ids=np.zeros(int(counts.sum()), np.int32),
                block_changes=self._given(starts, ends),
            )
            self._computed += counts

    def _renew(self) -> None:
        over = np.flatnonzero(self._computed >= self._limits)
        if len(over):
            self._handles[over] = np.arange(self._next, self._next + len(over))
            self._next += len(over)
            self._prompts[over], self._limits[over] = self._lengths(len(over))
            hit = self._random.random(len(over)) < self._load.prefix_hits
            size = self._load.block_size
            shared = (self._random.random(len(over)) * self._prompts[over] // size).astype(np.int64) * size
            self._computed[over] = np.where(hit, np.minimum(shared, self._prompts[over] - 1) // size * size, 0)
        if self._random.random() < self._load.preemptions:
            self._computed[int(self._random.integers(self._load.rows))] = 0

    def _given(self, starts: Ints, ends: Ints) -> Ints:
        """New blocks: each begins at a multiple of the block size among the computed positions."""
        size = self._load.block_size
        first, last = -(-starts // size), -(-ends // size)
        takes = np.flatnonzero(first < last)
        if not len(takes):
            return no_blocks()
        changes = [
            (int(self._handles[row]), index, int(self._blocks[int(self._random.integers(len(self._blocks)))]))
            for row in takes.tolist()
            for index in range(int(first[row]), int(last[row]))
        ]
        return np.array(changes, np.int32)
