"""Block tables of running sequences in one array, and what changed in them since the last record."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from checkengine.engine_shim.engine.sequence import LiveSequence
from checkengine.replay.record import BlockTables

Ints = NDArray[np.int32]


class TableArray:
    """Row r holds the blocks of one running sequence, padded with -1. One spare column is always -1."""

    def __init__(self, rows: int, width: int) -> None:
        self.array = np.full((rows, width + 1), -1, np.int32)
        self._free_rows = list(range(rows - 1, -1, -1))
        self._changes: list[tuple[int, int, int]] = []

    @property
    def free_rows(self) -> int:
        return len(self._free_rows)

    def open(self, sequence: LiveSequence) -> None:
        sequence.table_row = self._free_rows.pop()

    def append(self, sequence: LiveSequence, block: int) -> None:
        index = len(sequence.blocks)
        sequence.blocks.append(block)
        self.array[sequence.table_row, index] = block
        self._changes.append((sequence.handle, index, block))

    def close(self, sequence: LiveSequence, *, ended: bool) -> None:
        """The row becomes free; a cut is noted unless the sequence ends, which says as much."""
        self.array[sequence.table_row] = -1
        self._free_rows.append(sequence.table_row)
        sequence.table_row = -1
        sequence.blocks.clear()
        if not ended:
            self._changes.append((sequence.handle, 0, -1))

    def take_changes(self) -> Ints:
        """Shape (n, 3): changes since the last call, as in StepRecord."""
        changes = np.array(self._changes, np.int32).reshape(-1, 3)
        self._changes.clear()
        return changes


def tables_of(sequences: list[LiveSequence]) -> BlockTables:
    blocks = [block for sequence in sequences for block in sequence.blocks]
    return BlockTables(
        np.array([sequence.handle for sequence in sequences], np.int32),
        np.array([len(sequence.blocks) for sequence in sequences], np.int32),
        np.array(blocks, np.int32),
    )
