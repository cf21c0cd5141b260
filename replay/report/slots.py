"""The map of KV slots: whose each slot was in the step that is told of, and which one was read without right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkengine.replay.record import StepRecord
from checkengine.replay.recorded import RecordedWindow, Tables

MOST_SLOTS = 2048
"""Drawn in all; the pages nearest to what was read come first."""


@dataclass(frozen=True, slots=True)
class Cell:
    state: str
    """own: the suspect's; other: another sequence's; shared: the suspect's and another's; free: nobody's."""
    position: int | None
    """In the suspect's own order."""
    read: bool
    """Read without right."""


@dataclass(frozen=True, slots=True)
class Page:
    block: int
    owners: tuple[int, ...]
    """Handles."""
    first_position: int | None
    """Of the suspect; None where the page lies in none of its own."""
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class SlotMap:
    step: int
    suspect: int | None
    pages: tuple[Page, ...]
    """The suspect's in its own order, then the others by number."""
    left_out: int
    """Pages that are in the capture and not drawn."""


def slot_map(
    window: RecordedWindow,
    blocks: Iterable[int],
    block_size: int,
    suspect: int | None,
    step: int,
    guilty: Iterable[int],
) -> SlotMap | None:
    """As of `step` (the last one before it where the window lacks it); None where there is nothing to draw."""
    found = at_step(window, step)
    held = set(blocks)
    if found is None or not held or block_size < 1:
        return None
    record, tables = found
    lengths = known_lengths(window, record)
    wrong = set(guilty)
    own = tables[suspect].tolist() if suspect is not None and suspect in tables else []
    order = [block for block in own if block in held]
    order += sorted(held - set(order))
    drawn = nearest(order, {slot // block_size for slot in wrong}, own, max(1, MOST_SLOTS // block_size))
    owners = owners_of(tables)
    pages = tuple(
        page_of(block, block_size, own, suspect, owners.get(block, ()), tables, lengths, wrong) for block in drawn
    )
    return SlotMap(record.step, suspect, pages, len(order) - len(drawn))


def at_step(window: RecordedWindow, step: int) -> tuple[StepRecord, Tables] | None:
    best = None
    for record, tables in window.walk():
        if best is None or record.step <= step:
            best = (record, tables)
    return best


def known_lengths(window: RecordedWindow, until: StepRecord) -> dict[int, int]:
    """Tokens in memory of each sequence after the step."""
    lengths: dict[int, int] = {}
    for record in window.records:
        for handle, start, count in zip(
            record.handles.tolist(), record.starts.tolist(), record.query_lengths.tolist(), strict=True
        ):
            lengths[handle] = start + count
        if record.step == until.step:
            break
    return lengths


def owners_of(tables: Tables) -> Mapping[int, tuple[int, ...]]:
    owners: dict[int, tuple[int, ...]] = {}
    for handle, table in tables.items():
        for block in table.tolist():
            if block >= 0:
                owners[block] = (*owners.get(block, ()), handle)
    return owners


def nearest(order: Sequence[int], guilty: set[int], own: Sequence[int], most: int) -> list[int]:
    """At most so many pages, in their order: what was read, what lies beside it in memory, then the suspect's last."""
    last = own[-1:] if not guilty else []
    wanted = [*guilty, *(block + shift for block in guilty for shift in (-1, 1)), *last, *reversed(own), *order]
    kept = [block for block in dict.fromkeys(wanted) if block in set(order)][:most]
    return [block for block in order if block in set(kept)]


def page_of(
    block: int,
    block_size: int,
    own: Sequence[int],
    suspect: int | None,
    owners: tuple[int, ...],
    tables: Tables,
    lengths: Mapping[int, int],
    guilty: set[int],
) -> Page:
    first = own.index(block) * block_size if block in own else None
    cells = []
    for offset in range(block_size):
        holders = [
            handle for handle in owners if filled(block, offset, block_size, tables[handle], lengths.get(handle))
        ]
        mine = suspect is not None and suspect in holders
        state = "shared" if mine and len(holders) > 1 else "own" if mine else "other" if holders else "free"
        position = None if first is None else first + offset
        cells.append(Cell(state, position, block * block_size + offset in guilty))
    return Page(block, owners, first, tuple(cells))


def filled(block: int, offset: int, block_size: int, table: Any, length: int | None) -> bool:
    """Of a sequence whose length is not known all of its pages count."""
    place = table.tolist().index(block)
    return length is None or place * block_size + offset < length
