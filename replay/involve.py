"""Who is involved in an incident, what memory they read, and what is told of the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from checkengine.guards.step import SequenceStart
from checkengine.replay.capture import Capture
from checkengine.replay.record import BlockTables, Ints, StepRecord
from checkengine.replay.recorded import STAND_IN, RecordedWindow, row_slices

NAME_OF_OTHERS = "other-{}"


def involved(
    window: RecordedWindow, handles: Iterable[int], block_size: int, *, all_rows: bool = False
) -> frozenset[int]:
    """These sequences and, transitively, every sequence that wrote in the window into a block that one of them
    references in the window (a shared prefix). `all_rows`: everybody, as a mixture of experts needs."""
    if all_rows:
        return frozenset(int(handle) for record in window.records for handle in record.handles)
    referenced, writers = references(window, block_size)
    found: set[int] = set()
    waiting = list(handles)
    while waiting:
        handle = waiting.pop()
        if handle not in found:
            found.add(handle)
            waiting += [other for block in referenced.get(handle, ()) for other in writers.get(block, ())]
    return frozenset(found)


def references(window: RecordedWindow, block_size: int) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Blocks in the tables of each handle that ran, and the handles that wrote into each block."""
    referenced: dict[int, set[int]] = {}
    writers: dict[int, set[int]] = {}
    seen: dict[int, Ints] = {}
    for record, tables in window.walk():
        for handle, start, count, _ in row_slices(record):
            table = tables[handle]
            if seen.get(handle) is not table:
                seen[handle] = table
                referenced.setdefault(handle, set()).update(table[table >= 0].tolist())
            if count:
                for block in table[start // block_size : (start + count - 1) // block_size + 1].tolist():
                    writers.setdefault(block, set()).add(handle)
    return referenced, writers


def blocks_needed(window: RecordedWindow, handles: Iterable[int], pool: int | None = None) -> Ints:
    """Sorted blocks of these sequences' tables at any step of the window, and the block before and after each in
    memory: what a kernel that reads past an end finds there must be known. `pool`: number of blocks there are."""
    chosen = frozenset(handles)
    own: set[int] = set()
    for _, tables in window.walk():
        for handle in chosen & tables.keys():
            own.update(tables[handle].tolist())
    near = {block + shift for block in own if block >= 0 for shift in (-1, 0, 1)}
    return np.array(sorted(block for block in near if block >= 0 and (pool is None or block < pool)), np.int32)


def redact_uninvolved(capture: Capture, seed: int = 0) -> Capture:
    """The capture with every row that is not involved as a stand-in of equal shape: seeded token ids, no prompt, no
    name, no sampling parameters, no outcome; blocks outside the image are not told (tables show -1). Blocks inside
    the image stay, since those rows' writes change what the involved ones may read."""
    window, image = capture.window, capture.memory
    highest = max((int(record.token_ids.max(initial=0)) for record in window.records), default=0) + 1
    random = np.random.default_rng(seed)
    starts = {
        handle: start if handle in capture.involved else stranger(start) for handle, start in window.starts.items()
    }
    records = [redacted(record, capture, starts, random, highest) for record in window.records]
    base = redacted_tables(window.base, capture)
    kept = RecordedWindow(records, base, starts, window.dropped)
    histories = {handle: tokens for handle, tokens in capture.histories.items() if handle in capture.involved}
    return replace(capture, window=kept, histories=histories, memory=image)


def stranger(start: SequenceStart) -> SequenceStart:
    prompt = (0,) * len(start.prompt_tokens)
    return SequenceStart(start.handle, NAME_OF_OTHERS.format(start.handle), prompt, {"temperature": 0.0})


def redacted(
    record: StepRecord, capture: Capture, starts: dict[int, SequenceStart], random: np.random.Generator, highest: int
) -> StepRecord:
    others = ~np.isin(record.handles, list(capture.involved))
    tokens, fingerprints, sampled = record.token_ids.copy(), record.fingerprints.copy(), record.sampled.copy()
    theirs = np.repeat(others, record.query_lengths)
    tokens[theirs] = random.integers(0, highest, int(theirs.sum()))
    if len(sampled):
        sampled[others[record.samples]] = random.integers(0, highest, int(others[record.samples].sum()))
    if len(fingerprints):
        fingerprints[others[record.samples]] = 0
    changes = record.block_changes.copy()
    foreign = ~np.isin(changes[:, 0], list(capture.involved))
    changes[foreign, 2] = untold(changes[foreign, 2], capture)
    return replace(
        record,
        token_ids=tokens,
        sampled=sampled,
        fingerprints=fingerprints,
        block_changes=changes,
        begun=tuple(starts[start.handle] for start in record.begun),
        tables=None,
    )


def redacted_tables(base: BlockTables, capture: Capture) -> BlockTables:
    others = np.repeat(~np.isin(base.handles, list(capture.involved)), base.counts)
    blocks = base.blocks.copy()
    blocks[others] = untold(blocks[others], capture)
    return BlockTables(base.handles, base.counts, blocks)


def untold(blocks: Ints, capture: Capture) -> Ints:
    hidden = (blocks >= 0) & ~np.isin(blocks, capture.memory.blocks)
    return np.where(hidden, STAND_IN, blocks).astype(np.int32)
