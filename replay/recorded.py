"""A recorded stretch of steps and the block tables of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.step import SequenceStart
from checkengine.replay.executor import ReplayError
from checkengine.replay.record import BlockTables, Ints, StepRecord

STAND_IN = -2
"""A block of `block_changes` that is not told; tables show it as -1. (-1 itself cuts the table there.)"""

Tables = Mapping[int, Ints]
"""Block table by handle."""


@dataclass(slots=True)
class RecordedWindow:
    """Records in the order in which they ran, without a gap between them.

    `base` holds all tables as of the first record, its own `block_changes` applied. `starts` has every sequence
    that a record names. `dropped` counts the steps that the recorder could not keep since it began.
    """

    records: list[StepRecord] = field(default_factory=list)
    base: BlockTables = field(default_factory=lambda: pack_tables({}))
    starts: dict[int, SequenceStart] = field(default_factory=dict)
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.records)

    @property
    def first_step(self) -> int:
        self._refuse_empty()
        return self.records[0].step

    @property
    def last_step(self) -> int:
        self._refuse_empty()
        return self.records[-1].step

    def walk(self) -> Iterator[tuple[StepRecord, Tables]]:
        """Each record with all block tables as of it. Arrays are shared between steps: do not write to them."""
        tables = unpack_tables(self.base)
        for index, record in enumerate(self.records):
            if index:
                apply_changes(tables, [(record.ended, record.block_changes)])
            yield record, dict(tables)

    def tables_at(self, step: int) -> dict[int, Ints]:
        """All block tables as of `step`; ReplayError where the window does not hold it."""
        for record, tables in self.walk():
            if record.step == step:
                return dict(tables)
        raise ReplayError(f"step {step} is not in the recorded window {self.span()}: choose a step inside it")

    def since(self, step: int) -> RecordedWindow:
        """The part that begins at `step` (or at the first record after it)."""
        tables: Tables = {}
        for index, (record, tables) in enumerate(self.walk()):
            if record.step >= step:
                return RecordedWindow(self.records[index:], pack_tables(tables), dict(self.starts), self.dropped)
        return RecordedWindow([], pack_tables({}), dict(self.starts), self.dropped)

    def handles_of(self, name: str) -> list[int]:
        """Handles that ran under this public name, oldest first."""
        return sorted(handle for handle, start in self.starts.items() if start.name == name)

    def span(self) -> str:
        return f"{self.first_step}…{self.last_step}" if self.records else "(empty)"

    def _refuse_empty(self) -> None:
        if not self.records:
            raise ReplayError("the recorded window is empty: nothing was recorded yet, or the ring is too small")


def pack_tables(tables: Tables) -> BlockTables:
    handles = np.fromiter(tables.keys(), np.int32, len(tables))
    counts = np.fromiter((len(table) for table in tables.values()), np.int32, len(tables))
    blocks = np.concatenate(list(tables.values())) if tables else np.empty(0, np.int32)
    return BlockTables(handles, counts, blocks.astype(np.int32, copy=False))


def unpack_tables(packed: BlockTables) -> dict[int, Ints]:
    ends = np.cumsum(packed.counts).tolist()
    counts = packed.counts.tolist()
    return {
        handle: shown(packed.blocks[end - count : end])
        for handle, end, count in zip(packed.handles.tolist(), ends, counts, strict=True)
    }


def apply_changes(tables: dict[int, Ints], steps: Iterable[tuple[tuple[int, ...], Ints]]) -> None:
    """Bring the tables over some records, each given as (ended, block_changes). Tables that change are replaced, not
    written to."""
    changed: dict[int, list[int]] = {}
    for ended, block_changes in steps:
        for handle in ended:
            tables.pop(handle, None)
            changed.pop(handle, None)
        for handle, index, block in block_changes.tolist():
            if handle not in changed:
                changed[handle] = tables[handle].tolist() if handle in tables else []
            set_block(changed[handle], index, block)
    for handle, blocks in changed.items():
        tables[handle] = shown(np.array(blocks, np.int32))


def set_block(table: list[int], index: int, block: int) -> None:
    if block == -1:
        del table[index:]
        return
    table.extend([STAND_IN] * (index + 1 - len(table)))
    table[index] = block


def shown(blocks: NDArray[np.int32]) -> Ints:
    return np.maximum(blocks, -1)


def row_slices(record: StepRecord) -> Iterator[tuple[int, int, int, slice]]:
    """Per row: handle, first computed position, how many, and where its tokens lie in `token_ids`."""
    end = 0
    rows = zip(record.handles.tolist(), record.starts.tolist(), record.query_lengths.tolist(), strict=True)
    for handle, start, count in rows:
        begin, end = end, end + count
        yield handle, start, count, slice(begin, end)


def written_slots(record: StepRecord, tables: Tables, block_size: int) -> dict[int, Ints]:
    """By handle: the KV slots that the record's row writes, stand-in blocks left out."""
    written = {}
    for handle, start, count, _ in row_slices(record):
        positions = np.arange(start, start + count)
        blocks = tables[handle][positions // block_size] if count else np.empty(0, np.int32)
        slots = blocks * block_size + positions % block_size
        written[handle] = slots[blocks >= 0].astype(np.int32)
    return written
