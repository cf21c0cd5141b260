"""Which sequences and blocks a capture clones, within its budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from checkengine.replay.involve import blocks_needed, involved
from checkengine.replay.levels import LEVELS, Level
from checkengine.replay.record import Ints
from checkengine.replay.recorded import RecordedWindow


@dataclass(frozen=True, slots=True)
class Extent:
    """What a capture of this level clones."""

    level: Level
    involved: frozenset[int]
    blocks: Ints


def extent_within(
    window: RecordedWindow,
    handles: Iterable[int],
    block_size: int,
    *,
    most_blocks: int,
    level: Level = "L3",
    all_rows: bool = False,
) -> Extent:
    """The most that fits: at most `level`, and at most `most_blocks` blocks. A mixture of experts (`all_rows`) needs
    everybody or can do with the tail only."""
    suspects = frozenset(handles)
    extent = Extent("L0", suspects, np.empty(0, np.int32))
    for candidate in LEVELS[LEVELS.index(level) :]:
        if all_rows and candidate == "L2":
            continue
        extent = extent_at(window, suspects, block_size, candidate, all_rows)
        if len(extent.blocks) <= most_blocks:
            break
    return extent


def extent_at(
    window: RecordedWindow, suspects: frozenset[int], block_size: int, level: Level, all_rows: bool
) -> Extent:
    if level == "L3":
        everybody = involved(window, suspects, block_size, all_rows=all_rows)
        return Extent(level, everybody, blocks_needed(window, everybody))
    if level == "L2":
        return Extent(level, suspects, blocks_needed(window, suspects))
    blocks = tails(window, suspects, block_size) if level == "L1" else np.empty(0, np.int32)
    return Extent(level, suspects, blocks)


def tails(window: RecordedWindow, suspects: frozenset[int], block_size: int) -> Ints:
    """Of the last step in which each suspect ran."""
    last: dict[int, int] = {}
    for record, tables in window.walk():
        for row, handle in enumerate(record.handles.tolist()):
            if handle in suspects:
                length = int(record.starts[row] + record.query_lengths[row])
                last[handle] = int(tables[handle][(length - 1) // block_size])
    near = {block + shift for block in last.values() for shift in (-1, 0, 1) if block + shift >= 0}
    return np.array(sorted(near), np.int32)
