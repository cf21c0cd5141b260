"""From a capture to a window that can be run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from checkengine.replay.capture import Capture, inside, joined, read_slots, unknown_histories
from checkengine.replay.executor import CannotReplayError, ReplayStep
from checkengine.replay.levels import REPLAYABLE
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.record import Ints, StepRecord
from checkengine.replay.recorded import Tables, row_slices, written_slots
from checkengine.replay.stand_in import with_scratch, with_stand_ins
from checkengine.replay.window import ExactFrom, Window, WindowStep

NO_SLOTS: Ints = np.empty(0, np.int32)
OVERWRITTEN = (
    "the memory of the involved sequences was overwritten before it was captured, even that of their last step; "
    "raise the undo ring's byte budget"
)


def build_window(
    capture: Capture, *, involved: Iterable[int] | None = None, first: int | None = None, last: int | None = None
) -> Window:
    """The capture's steps `first` … `last`, with the rows of `involved` handles as they were.

    By default: all that the capture involves, from the first exact step if that is not past the finding, else from
    the first step at which the sequences' own slots are known, to the end.
    """
    if capture.level not in REPLAYABLE:
        raise CannotReplayError(
            f"the capture is of level {capture.level}: its KV pages were beyond [capture] kv_bytes or level, so the "
            "steps cannot run again"
        )
    handles = replayable(capture, frozenset(capture.involved if involved is None else involved))
    recorded = list(capture.window.walk())
    exact = capture.first_exact_step
    begin = first if first is not None else first_step(capture, handles, recorded, exact)
    exact_from: ExactFrom = "undo" if exact is not None and exact <= begin else "fills"
    end = capture.window.last_step if last is None else last
    chosen = [(record, tables) for record, tables in recorded if begin <= record.step <= end]
    if not chosen:
        raise CannotReplayError(f"steps {begin}…{end} are not in the recorded window {capture.window.span()}")
    if not any(np.isin(record.handles, list(handles)).any() for record, _ in chosen):
        raise CannotReplayError(OVERWRITTEN)
    return assemble(capture, handles, chosen, exact_from)


def window_of_all_rows(capture: Capture, first: int, last: int) -> Window | None:
    """The steps with every row of the batch as it was. None where the capture lacks some row's memory or tokens: an
    incident's capture holds its own sequence and what shares blocks with it."""
    handles: set[int] = set()
    for record, tables in capture.window.walk():
        if first <= record.step <= last:
            handles |= set(record.handles.tolist())
            for handle, start, count, _ in row_slices(record):
                pages = -(-(start + count) // capture.memory.block_size)
                if not np.isin(tables[handle][:pages], capture.memory.blocks).all():
                    return None
    everybody = replace(capture, involved=frozenset(handles))
    if not handles or unknown_histories(everybody):
        return None
    return build_window(everybody, involved=handles, first=first, last=last)


def replayable(capture: Capture, handles: frozenset[int]) -> frozenset[int]:
    """Those whose earlier output tokens are known. A sequence that ended inside the window may have none; its row is
    a stand-in then, and what it wrote into shared blocks is put back as recorded."""
    if not handles:
        raise CannotReplayError("the capture names no involved sequence: there is no row to compare")
    missing = handles & unknown_histories(capture)
    suspects = {finding.sequence for finding in capture.findings}
    kept = handles - missing
    names = {capture.window.starts[handle].name for handle in kept}
    lost = not kept or (bool(suspects) and not suspects & names)
    if lost or (missing and capture.environment.get("all_rows")):
        raise CannotReplayError(
            f"the capture lacks earlier output tokens of {len(missing)} involved sequences; "
            "a longer recorder window or content capture would hold them"
        )
    return kept


def first_step(
    capture: Capture, handles: frozenset[int], recorded: list[tuple[StepRecord, Tables]], exact: int | None
) -> int:
    trigger = min((finding.step for finding in capture.findings), default=capture.window.last_step)
    if exact is not None and exact <= trigger:
        return exact
    return first_known_step(capture, handles, recorded)


def first_known_step(capture: Capture, handles: frozenset[int], recorded: list[tuple[StepRecord, Tables]]) -> int:
    """The earliest step from which on the involved rows' own slots hold what they held."""
    size, first = capture.memory.block_size, None
    live, clobbered = NO_SLOTS, NO_SLOTS
    for record, tables in reversed(recorded):
        everything = joined(list(written_slots(record, tables, size).values()))
        live = live_before(live, reads(record, tables, handles, size), everything)
        if np.isin(live, clobbered).any():
            break
        undone = joined([entry.slots for entry in capture.undo if entry.step == record.step])
        clobbered = np.union1d(clobbered, np.setdiff1d(everything, undone)).astype(np.int32)
        first = record.step
    if first is None:
        raise CannotReplayError(OVERWRITTEN)
    return first


def reads(record: StepRecord, tables: Tables, handles: frozenset[int], block_size: int) -> Ints:
    """Slots that the involved rows of a step may rightly read, this step's own included."""
    parts = []
    for handle, start, count, _ in row_slices(record):
        if handle in handles:
            positions = np.arange(start + count)
            parts.append(tables[handle][positions // block_size] * block_size + positions % block_size)
    return np.unique(joined(parts)).astype(np.int32)


def live_before(live_after: Ints, read: Ints, written: Ints) -> Ints:
    """Liveness, as compilers do it: what is read from here on before it is written."""
    return np.setdiff1d(np.union1d(live_after, read), written).astype(np.int32)


def assemble(
    capture: Capture,
    handles: frozenset[int],
    chosen: list[tuple[StepRecord, Tables]],
    exact_from: ExactFrom,
) -> Window:
    first, last = chosen[0][0].step, chosen[-1][0].step
    image, scratch = with_scratch(capture.memory_at(first))
    after = capture.memory_at(last + 1)
    own = inside(reads(*chosen[-1], handles, image.block_size), after)
    left = UndoEntry(last, own, read_slots(after, own))
    known = {step.record.step: step for step in capture.replay_steps(first)}
    largest = max((int(record.token_ids.max(initial=0)) for record, _ in chosen), default=0) + 1
    steps: list[WindowStep] = []
    live = NO_SLOTS
    for record, tables in reversed(chosen):
        step = walk_back(capture, handles, record, tables, after, live)
        live = step.live
        step.replay = with_stand_ins(known[record.step], step.involved, scratch, image.block_size, largest)
        steps.append(step)
    steps.reverse()
    starts = {handle: capture.window.starts[handle] for handle in handles}
    return Window(image, steps, starts, exact_from, scratch.blocks, left)


def walk_back(
    capture: Capture, handles: frozenset[int], record: StepRecord, tables: Tables, after: MemoryImage, live: Ints
) -> WindowStep:
    """The step; `after` is memory as the step left it, and is taken back to before the step in place."""
    size = after.block_size
    by_handle = written_slots(record, tables, size)
    ours = joined([slots for handle, slots in by_handle.items() if handle in handles])
    theirs = joined([slots for handle, slots in by_handle.items() if handle not in handles])
    entries = [entry for entry in capture.undo if entry.step == record.step]
    others = inside(np.setdiff1d(joined([theirs, *(entry.slots for entry in entries)]), ours), after)
    neighbours = UndoEntry(record.step, others, read_slots(after, others)) if len(others) else None
    after.take_back(entries)
    read = reads(record, tables, handles, size)
    return WindowStep(
        replay=ReplayStep(record, [], {}, {}),
        involved=np.isin(record.handles, list(handles)),
        live=live_before(live, read, np.union1d(ours, others).astype(np.int32)),
        read=read,
        neighbours=neighbours,
        neighbours_read=np.flatnonzero(np.isin(others, np.union1d(live, read))),
        owners=owners_of(capture, tables, after.blocks),
    )


def owners_of(capture: Capture, tables: Tables, blocks: Ints) -> dict[int, tuple[str, ...]]:
    """Names of the sequences in whose tables each of the blocks lies."""
    held = np.zeros(int(blocks.max(initial=0)) + 1, np.bool_)
    held[blocks] = True
    owners: dict[int, tuple[str, ...]] = {}
    for handle, table in tables.items():
        known = table[(table >= 0) & (table < len(held))]
        start = capture.window.starts.get(handle)
        for block in known[held[known]].tolist():
            owners[block] = (*owners.get(block, ()), start.name if start else f"handle {handle}")
    return owners
