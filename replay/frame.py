"""A step record as 32-bit words.

Words: header | fingerprints (2 a sampling row) | sampled | handles | query_lengths | starts | samples |
token_ids | block_changes (3 each) | begun handles | ended handles | table handles | table counts | table blocks.
Fingerprints follow the header so that they lie on 8 bytes; a frame's length is even for the same reason.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.step import SequenceStart
from checkengine.replay.record import BlockTables, Ints, StepRecord

Words = NDArray[np.int32]

CHECKPOINT = 1
"""Mark of a frame that holds all block tables."""
SAMPLED = 2
FINGERPRINTS = 4
"""Marks of a frame whose outcome is known."""
MOST_KERNELS = 256
HEADER = struct.Struct("<qq9i12x")
HEADER_WORDS = HEADER.size // 4
SAMPLING_WORD = 6


Counts = tuple[int, int, int, int, int, int, int, int]
"""A Layout without its names, which cost time that a step does not have."""


class Layout(NamedTuple):
    """How many of each; `table_rows` is -1 where the frame is no checkpoint."""

    rows: int
    tokens: int
    sampling: int
    changes: int
    begun: int
    ended: int
    table_rows: int
    table_blocks: int


def measure(record: StepRecord, tables: BlockTables | None) -> Counts:
    return (
        len(record.handles),
        len(record.token_ids),
        int(np.count_nonzero(record.samples)),
        len(record.block_changes),
        len(record.begun),
        len(record.ended),
        -1 if tables is None else len(tables.handles),
        0 if tables is None else len(tables.blocks),
    )


def count_words(counts: Counts) -> int:
    rows, tokens, sampling, changes, begun, ended, table_rows, table_blocks = counts
    words = HEADER_WORDS + 3 * sampling + 4 * rows + tokens + 3 * changes + begun + ended
    if table_rows >= 0:
        words += 2 * table_rows + table_blocks
    return words


def write(words: Words, record: StepRecord, tables: BlockTables | None, counts: Counts, kernel: int) -> None:
    """Everything but the outcome; ValueError where the record's arrays do not fit together."""
    HEADER.pack_into(words.data, 0, record.step, record.time_ns, *counts, kernel)
    _, _, sampling, changes, begun, ended, _, _ = counts
    parts: list[NDArray[np.generic]] = [
        record.handles,
        record.query_lengths,
        record.starts,
        record.samples,
        record.token_ids,
    ]
    if changes:
        parts.append(record.block_changes.reshape(-1))
    if begun:
        parts.append(np.array([start.handle for start in record.begun], np.int32))
    if ended:
        parts.append(np.array(record.ended, np.int32))
    if tables is not None:
        parts += [tables.handles, tables.counts, tables.blocks]
    np.concatenate(parts, out=words[HEADER_WORDS + 3 * sampling :], casting="same_kind")


def write_outcome(words: Words, fingerprints: NDArray[np.uint64] | None, sampled: Ints) -> int:
    """Returns the marks of what was written; ValueError where a length is not that of the sampling rows."""
    sampling = int(words[SAMPLING_WORD])
    if len(sampled) != sampling or (fingerprints is not None and len(fingerprints) not in (0, sampling)):
        raise ValueError(f"the outcome of {sampling} sampling rows came with {len(sampled)} tokens")
    begin = HEADER_WORDS + 2 * sampling
    if fingerprints is None or not len(fingerprints):
        words[begin : begin + sampling] = sampled
        return SAMPLED
    np.concatenate((fingerprints.view(np.int32), sampled), out=words[HEADER_WORDS : begin + sampling])
    return SAMPLED | FINGERPRINTS


class Frame:
    """Reads one frame's words."""

    def __init__(self, words: Words, marks: int) -> None:
        self._words = words
        self._marks = marks
        self.step, self.time_ns, *counts, self.kernel = HEADER.unpack_from(words.data, 0)
        self.layout = Layout(*counts)
        self._next = HEADER_WORDS + 3 * self.layout.sampling

    def _take(self, words: int) -> Ints:
        begin, self._next = self._next, self._next + words
        return self._words[begin : self._next]

    def record(self, starts: Mapping[int, SequenceStart], kernels: Sequence[str]) -> tuple[StepRecord, BlockTables]:
        """Arrays are views of the frame. The tables are empty where the frame is no checkpoint."""
        layout = self.layout
        rows = [self._take(layout.rows) for _ in range(4)]
        tokens = self._take(layout.tokens)
        changes = self._take(3 * layout.changes).reshape(-1, 3)
        begun, ended = self._take(layout.begun).tolist(), self._take(layout.ended).tolist()
        table_handles, table_counts = (self._take(max(0, layout.table_rows)) for _ in range(2))
        tables = BlockTables(table_handles, table_counts, self._take(layout.table_blocks))
        record = StepRecord(
            step=self.step,
            time_ns=self.time_ns,
            handles=rows[0],
            query_lengths=rows[1],
            starts=rows[2],
            samples=rows[3].astype(np.bool_),
            token_ids=tokens,
            block_changes=changes,
            begun=tuple(starts[handle] for handle in begun),
            ended=tuple(ended),
            kernel=kernels[self.kernel],
        )
        self._read_outcome(record)
        return record, tables

    def _read_outcome(self, record: StepRecord) -> None:
        begin = HEADER_WORDS + 2 * self.layout.sampling
        if self._marks & SAMPLED:
            record.sampled = self._words[begin : begin + self.layout.sampling]
        if self._marks & FINGERPRINTS:
            record.fingerprints = self._words[HEADER_WORDS:begin].view(np.uint64)
