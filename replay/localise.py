"""Which layers, and which slots: halving over what the kernel had no right to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from checkengine.replay.judge.fills import Difference, layer_bits
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import SlotPlace
from checkengine.replay.playback import Bits
from checkengine.replay.record import Ints
from checkengine.replay.window import Window, WindowStep

MOST_SLOTS = 64
"""More guilty slots than this are not listed one by one."""


LOOK_AHEAD = 16
CHEAPER = 3
"""A step of a third of the tokens is worth looking for, this many steps ahead."""


@dataclass(slots=True)
class Localised:
    step: WindowStep
    """Whose reads are told: the first step that shows the fault, or a cheaper one soon after."""
    row: int
    layers: tuple[int, ...]
    slots: tuple[SlotPlace, ...]
    complete: bool
    """False where the search stopped at MOST_SLOTS, or no single slot or layer shows the fault by itself."""


def localise(bench: Bench, found: Difference) -> Localised:
    """Layers by filling one at a time, slots by halving, on the first step that shows the fault or a cheaper one soon
    after. Leaves the memory of `found` filled with the first pattern."""
    search = cheaper_search(bench, found) or _Search(bench, found)
    slots, complete = find_all(search.unowned, search.changes, MOST_SLOTS)
    layers = [layer for layer in search.layers() if search.changes(search.unowned, (layer,))]
    if not layers and found.first_layer is not None:
        layers, complete = [found.first_layer], False
    places = tuple(place_of(bench.window, search.found.step, search.found.row, int(slot)) for slot in slots)
    return Localised(search.found.step, search.found.row, tuple(layers), places, complete and len(slots) > 0)


def cheaper_search(bench: Bench, found: Difference) -> _Search | None:
    """A later step of far fewer tokens in which the same sequence reads what it should not: a search runs its step
    some fifty times, and a step with a prefill chunk beside it costs many decode steps."""
    steps = bench.window.steps
    index = steps.index(found.step)
    handle = found.step.replay.record.handles[found.row]
    for step in steps[index + 1 : index + 1 + LOOK_AHEAD]:
        found.filled.run(step)
        record = step.replay.record
        rows = np.flatnonzero(record.handles == handle)
        if len(rows) and CHEAPER * len(record.token_ids) <= len(found.step.replay.record.token_ids):
            later = replace(found, step=step, row=int(rows[0]), first_layer=None, memory=found.filled.memory)
            search = _Search(bench, later)
            return search if search.changes(search.unowned) else None
    return None


class _Search:
    def __init__(self, bench: Bench, found: Difference) -> None:
        self.bench, self.found = bench, found
        self.unowned = bench.window.unowned(found.step)
        bench.executor.write_slots(found.memory, self.unowned, found.fills[0])
        self.quiet = self._bits()

    def _bits(self) -> Bits:
        return layer_bits(self.found.step, self.bench.run_again(self.found.step, self.found.memory), self.found.row)

    def layers(self) -> list[int]:
        return sorted(layer for layers in self.bench.window.image.layers.values() for layer in layers)

    def changes(self, slots: Ints, layers: Sequence[int] | None = None) -> bool:
        """Do the row's bits change when just these slots, in just these layers, hold the second pattern?"""
        write, memory = self.bench.executor.write_slots, self.found.memory
        write(memory, slots, self.found.fills[1], layers)
        changed = self._bits() != self.quiet
        write(memory, slots, self.found.fills[0], layers)
        return changed


def find_all(candidates: Ints, changes: Callable[[Ints], bool], most: int) -> tuple[Ints, bool]:
    """All candidates that matter by themselves, by halving, and whether the search went to its end."""
    guilty: list[int] = []
    pending = [candidates] if len(candidates) and changes(candidates) else []
    while pending:
        part = pending.pop()
        if len(part) == 1:
            guilty.append(int(part[0]))
            if len(guilty) == most:
                return np.array(sorted(guilty), np.int32), not pending
            continue
        halves = part[: len(part) // 2], part[len(part) // 2 :]
        pending += [half for half in halves if changes(half)]
    return np.array(sorted(guilty), np.int32), True


def place_of(window: Window, step: WindowStep, row: int, slot: int) -> SlotPlace:
    """The slot as the sequence of this row sees it."""
    record, size = step.replay.record, window.image.block_size
    table, name = step.replay.block_tables[row], window.name_of(step, row)
    length = int(record.starts[row] + record.query_lengths[row])
    block, offset = divmod(slot, size)
    of_sequence = f"the end of sequence {name} (length {length:,})"
    held = np.flatnonzero(table == block)
    if len(held):
        position = int(held[0]) * size + offset
        return SlotPlace(slot, block, position, f"slot {slot:,} = {past(position - length + 1)} {of_sequence}")
    last = int(table[(length - 1) // size]) * size + (length - 1) % size
    if slot > last and (slot - last) <= size:
        return SlotPlace(slot, block, None, f"slot {slot:,} = {past(slot - last)} {of_sequence}, in the next block")
    return SlotPlace(
        slot, block, None, f"slot {slot:,} in block {block:,}, which is not in the table of sequence {name}"
    )


def past(distance: int) -> str:
    words = {1: "one", 2: "two", 3: "three"}
    return f"{words.get(distance, f'{distance:,}')} past"
