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


def write_outcome(
    words: Words, doubles: NDArray[np.uint64], fingerprints: NDArray[np.uint64] | None, sampled: Ints
) -> int:
    """Returns the marks of what was written; ValueError where a length is not that of the sampling rows. `doubles`:
    the same memory as `words`, two words each."""
    sampling = int(words[SAMPLING_WORD])
    if len(sampled) != sampling or (fingerprints is not None and len(fingerprints) not in (0, sampling)):
        raise ValueError(f"the outcome of {sampling} sampling rows came with {len(sampled)} tokens")
    begin = HEADER_WORDS + 2 * sampling
    words[begin : begin + sampling] = sampled
    if fingerprints is None or not len(fingerprints):
        return SAMPLED
    doubles[HEADER_WORDS // 2 : begin // 2] = fingerprints
    return SAMPLED | FINGERPRINTS


class Frame:
    """Reads one frame's words. Arrays that it gives are views of them."""

    def __init__(self, words: Words, marks: int) -> None:
        self._words = words
        self._marks = marks
        self.step, self.time_ns, *counts, self.kernel = HEADER.unpack_from(words.data, 0)
        self.layout = Layout(*counts)
        self._rows = HEADER_WORDS + 3 * self.layout.sampling
        self._changes = self._rows + 4 * self.layout.rows + self.layout.tokens
        self._begun = self._changes + 3 * self.layout.changes
        self._ended = self._begun + self.layout.begun
        self._tables = self._ended + self.layout.ended

    def ended(self) -> tuple[int, ...]:
        return tuple(self._words[self._ended : self._tables].tolist())

    def block_changes(self) -> Ints:
        return self._words[self._changes : self._begun].reshape(-1, 3)

    def tables(self) -> BlockTables:
        """Empty where the frame is no checkpoint."""
        count = max(0, self.layout.table_rows)
        counts, blocks = self._tables + count, self._tables + 2 * count
        end = blocks + self.layout.table_blocks
        return BlockTables(self._words[self._tables : counts], self._words[counts:blocks], self._words[blocks:end])

    def record(self, starts: Mapping[int, SequenceStart], kernels: Sequence[str]) -> StepRecord:
        rows = self._words[self._rows : self._rows + 4 * self.layout.rows].reshape(4, -1)
        record = StepRecord(
            step=self.step,
            time_ns=self.time_ns,
            handles=rows[0],
            query_lengths=rows[1],
            starts=rows[2],
            samples=rows[3].astype(np.bool_),
            token_ids=self._words[self._rows + 4 * self.layout.rows : self._changes],
            block_changes=self.block_changes(),
            begun=tuple(starts[handle] for handle in self._words[self._begun : self._ended].tolist()),
            ended=self.ended(),
            kernel=kernels[self.kernel],
        )
        self._read_outcome(record)
        return record

    def _read_outcome(self, record: StepRecord) -> None:
        begin = HEADER_WORDS + 2 * self.layout.sampling
        if self._marks & SAMPLED:
            record.sampled = self._words[begin : begin + self.layout.sampling]
        if self._marks & FINGERPRINTS:
            record.fingerprints = self._words[HEADER_WORDS:begin].view(np.uint64)
