"""Which layers, and which slots: halving over what the kernel had no right to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from checkengine.replay.judge.fault_class import FaultClass
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
    """False where the search stopped early, or no single slot or layer shows the fault by itself."""
    fault_class: FaultClass | None = None
    heads: tuple[int, ...] = ()
    """Of the query, in the first of the layers; empty where that was not told."""
    position: int | None = None
    """Of the first token whose output is wrong."""
    parts: tuple[str, ...] = ()
    """What of the slots is read: "key", "value" or another tensor of the cache."""
    words: str = ""
    """What else there is to say."""
    attends: int = 0
    """Calls of one row's attention run alone; no run of the model."""


def localise(bench: Bench, found: Difference) -> Localised:
    """Layers by filling one at a time, slots by halving, on the first step that shows the fault or a cheaper one soon
    after. Leaves the memory of `found` filled with the first pattern."""
    search = cheaper_search(bench, found) or Search(bench, found)
    slots, complete = find_all(search.unowned, search.changes, MOST_SLOTS)
    layers, all_layers = search.guilty_layers(found.first_layer)
    where = search.found
    places = tuple(place_of(bench.window, where.step, where.row, int(slot)) for slot in slots)
    return Localised(
        where.step,
        where.row,
        layers,
        places,
        complete and all_layers and len(slots) > 0,
        parts=search.parts(slots),
    )


def cheaper_search(bench: Bench, found: Difference) -> Search | None:
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
            search = Search(bench, later)
            return search if search.changes(search.unowned) else None
    return None


class Search:
    def __init__(self, bench: Bench, found: Difference) -> None:
        self.bench, self.found = bench, found
        self.unowned = bench.window.unowned(found.step)
        bench.executor.write_slots(found.memory, self.unowned, found.fills[0])
        self.quiet = self.bits()

    def bits(self) -> Bits:
        return layer_bits(self.found.step, self.bench.run_again(self.found.step, self.found.memory), self.found.row)

    def guilty_layers(self, first: int | None) -> tuple[tuple[int, ...], bool]:
        """Layers whose own memory matters, and whether those are all. The hashes of the ops name the first one that
        differs; without it the next one is the first, and so on, for as many runs as halving would cost."""
        left = sorted(layer for layers in self.bench.window.image.layers.values() for layer in layers)
        budget = halvings(len(left)) + 4
        guilty: list[int] = []
        while left and budget:
            layer = self.first_changed(left)
            budget -= 1
            if layer is None:
                return tuple(guilty), bool(guilty)
            guilty.append(layer)
            left = [other for other in left if other > layer]
        if not guilty and first is not None:
            guilty = [first]
        return tuple(guilty), bool(guilty) and not left

    def first_changed(self, layers: Sequence[int]) -> int | None:
        """The first layer whose ops differ when these layers' unowned memory holds the second pattern."""
        write, memory = self.bench.executor.write_slots, self.found.memory
        write(memory, self.unowned, self.found.fills[1], layers)
        bits = self.bits()
        write(memory, self.unowned, self.found.fills[0], layers)
        changed = (int(b[1]) for a, b in zip(self.quiet, bits, strict=True) if a != b and b[0] != "logits")
        return next(changed, None) if bits != self.quiet else None

    def parts(self, slots: Ints) -> tuple[str, ...]:
        """Which tensors of the cache are read at these slots: each by itself holds the second pattern."""
        tensors = self.bench.window.image.tensors
        kinds = sorted({name.rpartition(".")[2] for name in tensors})
        return tuple(kind for kind in kinds if len(slots) and self._part_changes(slots, kind))

    def _part_changes(self, slots: Ints, kind: str) -> bool:
        restore, memory = self.bench.executor.restore, self.found.memory
        quiet, loud = self.found.fills
        restore(memory, slots, self._pattern(len(slots), lambda name: loud if name.endswith(f".{kind}") else quiet))
        changed = self.bits() != self.quiet
        restore(memory, slots, self._pattern(len(slots), lambda name: quiet))
        return changed

    def _pattern(self, count: int, number: Callable[[str], float]) -> dict[str, torch.Tensor]:
        tensors = self.bench.window.image.tensors
        return {
            name: torch.full((count, tensor.shape[1], *tensor.shape[3:]), number(name)).to(tensor.dtype)
            for name, tensor in tensors.items()
        }

    def changes(self, slots: Ints, layers: Sequence[int] | None = None) -> bool:
        """Do the row's bits change when just these slots, in just these layers, hold the second pattern?"""
        write, memory = self.bench.executor.write_slots, self.found.memory
        write(memory, slots, self.found.fills[1], layers)
        changed = self.bits() != self.quiet
        write(memory, slots, self.found.fills[0], layers)
        return changed


def halvings(candidates: int) -> int:
    return max(0, candidates - 1).bit_length()


def find_all(candidates: Ints, changes: Callable[[Ints], bool], most: int) -> tuple[Ints, bool]:
    """All candidates that matter by themselves, by halving, and whether the search went to its end.

    A single one costs ⌈log₂ candidates⌉ + 3 tests at most: all, one half after the other, and all but it.
    """
    if not len(candidates) or not changes(candidates):
        return np.empty(0, np.int32), True
    first = find_one(candidates, changes)
    if first is None:
        return np.empty(0, np.int32), False
    rest = candidates[candidates != first]
    more, complete = (
        find_rest(rest, changes, most - 1) if len(rest) and changes(rest) else (np.empty(0, np.int32), True)
    )
    return np.union1d(more, [first]).astype(np.int32), complete


def find_rest(candidates: Ints, changes: Callable[[Ints], bool], most: int) -> tuple[Ints, bool]:
    """As `find_all`, of candidates that matter: every half that does is halved."""
    guilty: list[int] = []
    pending = [candidates]
    while pending:
        part = pending.pop()
        if len(part) == 1:
            guilty.append(int(part[0]))
            if len(guilty) == most:
                return np.array(sorted(guilty), np.int32), not pending
            continue
        halves = part[: len(part) // 2], part[len(part) // 2 :]
        pending += [half for half in halves if changes(half)]
    return np.array(sorted(guilty), np.int32), bool(guilty)


def find_one(part: Ints, changes: Callable[[Ints], bool]) -> int | None:
    """One that matters, of a part that does; None where it takes several together."""
    known = True
    while len(part) > 1:
        half, rest = part[: len(part) // 2], part[len(part) // 2 :]
        if changes(half):
            part, known = half, True
        else:
            part, known = rest, False
    return int(part[0]) if known or changes(part) else None


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
        if position < length:
            return SlotPlace(slot, block, position, f"slot {slot:,} = position {position:,} of sequence {name}")
        return SlotPlace(slot, block, position, f"slot {slot:,} = {past(position - length + 1)} {of_sequence}")
    owners = [owner for owner in step.owners.get(block, ()) if owner != name]
    whose = f", of sequence {', '.join(owners)}" if owners else ""
    last = int(table[(length - 1) // size]) * size + (length - 1) % size
    if slot > last and (slot - last) <= size:
        words = f"slot {slot:,} = {past(slot - last)} {of_sequence}, in the next block{whose}"
    else:
        words = f"slot {slot:,} in block {block:,}{whose}, which is not in the table of sequence {name}"
    return SlotPlace(slot, block, None, words)


def past(distance: int) -> str:
    words = {1: "one", 2: "two", 3: "three"}
    return f"{words.get(distance, f'{distance:,}')} past"
