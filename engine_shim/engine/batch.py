"""One step's packed batch: rows of sequences, tokens packed without padding."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.step import SequenceStart
from checkengine.replay.record import BlockTables, StepRecord, no_blocks

Ints = NDArray[np.int32]


@dataclass
class PackedBatch:
    """Fields as in StepRecord. `tables` has shape (rows, blocks of the longest row or more): block numbers of the
    engine, padded with -1."""

    step: int
    handles: Ints
    query_lengths: Ints
    starts: Ints
    samples: NDArray[np.bool_]
    token_ids: Ints
    tables: Ints
    block_size: int
    block_changes: Ints = field(default_factory=no_blocks)
    all_tables: Callable[[], BlockTables] | None = None
    begun: tuple[SequenceStart, ...] = ()
    ended: tuple[int, ...] = ()
    kernel: str = "paged"

    @cached_property
    def lengths(self) -> Ints:
        """Shape (rows,): tokens in memory once this step has written its own."""
        return self.starts + self.query_lengths

    @cached_property
    def first_tokens(self) -> Ints:
        """Shape (rows + 1,): where each row's tokens begin in the packed arrays."""
        return np.concatenate(([0], np.cumsum(self.query_lengths))).astype(np.int32)

    @cached_property
    def positions(self) -> Ints:
        """Shape (tokens,): position of each packed token in its sequence."""
        shift = self.starts - self.first_tokens[:-1]
        return np.arange(len(self.token_ids), dtype=np.int32) + np.repeat(shift, self.query_lengths)

    @cached_property
    def sampling_positions(self) -> NDArray[np.int64]:
        """Shape (sampling rows,): packed index of each sampling row's last token."""
        return (self.first_tokens[1:][self.samples] - 1).astype(np.int64)

    @cached_property
    def slots(self) -> Ints:
        """Shape (tokens,): slots that this step writes, under the engine's block numbers."""
        rows = np.repeat(np.arange(len(self.handles)), self.query_lengths)
        blocks = self.tables[rows, self.positions // self.block_size]
        return (blocks * self.block_size + self.positions % self.block_size).astype(np.int32)

    def record(self) -> StepRecord:
        return StepRecord(
            step=self.step,
            time_ns=time.time_ns(),
            handles=self.handles,
            query_lengths=self.query_lengths,
            starts=self.starts,
            samples=self.samples,
            token_ids=self.token_ids,
            block_changes=self.block_changes,
            tables=self.all_tables,
            begun=self.begun,
            ended=self.ended,
            kernel=self.kernel,
        )

    @classmethod
    def of_record(cls, record: StepRecord, block_tables: list[Ints], block_size: int) -> PackedBatch:
        """The batch that a record describes, with its block tables in full, one array of blocks a row."""
        tables = np.full((len(block_tables), max(len(table) for table in block_tables) + 1), -1, np.int32)
        for row, table in enumerate(block_tables):
            tables[row, : len(table)] = table
        return cls(
            step=record.step,
            handles=record.handles,
            query_lengths=record.query_lengths,
            starts=record.starts,
            samples=record.samples,
            token_ids=record.token_ids,
            tables=tables,
            block_size=block_size,
            kernel=record.kernel,
        )
