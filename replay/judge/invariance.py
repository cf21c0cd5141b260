"""What must not matter at equal shape, and so may convict: where pages lie, and what neighbours hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from checkengine.replay.executor import ReplayStep
from checkengine.replay.judge.repeat import Repeats, name_difference
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.playback import all_bits
from checkengine.replay.record import Ints
from checkengine.replay.window import Window, WindowStep

Difference = tuple[WindowStep, str]
"""The first step that gives other bits, and what in it."""


def try_placement(bench: Bench, repeats: Repeats, seed: int = 0) -> tuple[TestResult, Difference | None]:
    """Run the window with its blocks renumbered and laid out in another order."""
    moved = Bench(bench.executor, permuted(bench.window, np.random.default_rng(seed)))
    found = first_difference(moved, repeats)
    bench.replays += moved.replays
    blocks = {"blocks": len(bench.window.image.blocks) - len(bench.window.scratch)}
    if found is None:
        return TestResult("placement", True, "no bit depends on where its pages lie", blocks), None
    detail = f"step {found[0].number} gives other bits with the same pages in other places: {found[1]}"
    return TestResult("placement", False, detail, blocks), found


def try_neighbours(bench: Bench, repeats: Repeats, seed: int = 0) -> tuple[TestResult, Difference | None]:
    """Run the window with other tokens in every row that is not the suspect's."""
    rows = sum(int((~step.involved).sum()) for step in bench.window.steps)
    if not getattr(bench.executor, "row_independent", False):
        return TestResult("neighbours", None, "not run: the executor does not say that rows are independent"), None
    if not rows:
        return TestResult("neighbours", None, "not run: no row is a neighbour's", {"rows": 0}), None
    other = Bench(bench.executor, with_other_neighbours(bench.window, np.random.default_rng(seed)))
    found = first_difference(other, repeats)
    bench.replays += other.replays
    if found is None:
        detail = f"no bit depends on what the {rows} rows of other sequences hold"
        return TestResult("neighbours", True, detail, {"rows": rows}), None
    detail = f"step {found[0].number} gives other bits with other neighbours in equal shape: {found[1]}"
    return TestResult("neighbours", False, detail, {"rows": rows}), found


def first_difference(bench: Bench, repeats: Repeats) -> Difference | None:
    for (step, output), expected in zip(bench.steps(), repeats.bits, strict=True):
        bits = all_bits(step, output)
        if bits != expected:
            return step, name_difference(expected, bits)
    return None


def permuted(window: Window, random: np.random.Generator) -> Window:
    """Blocks other than the stand-ins' renumbered among themselves: memory, tables and slots alike."""
    image = window.image
    own = np.setdiff1d(image.blocks, window.scratch)
    renamed = np.arange(int(image.blocks.max()) + 2, dtype=np.int32)
    renamed[own] = random.permutation(own)
    numbers = renamed[image.blocks]
    order = np.argsort(numbers)
    tensors = {name: tensor[order.tolist()] for name, tensor in image.tensors.items()}
    moved = MemoryImage(image.block_size, numbers[order], tensors, image.layers)
    steps = [moved_step(step, renamed, image.block_size) for step in window.steps]
    return replace(window, image=moved, steps=steps)


def moved_step(step: WindowStep, renamed: Ints, size: int) -> WindowStep:
    def slots(old: Ints) -> Ints:
        return (renamed[old // size] * size + old % size).astype(np.int32)

    tables = [
        np.where(table >= 0, renamed[np.clip(table, 0, len(renamed) - 1)], table).astype(np.int32)
        for table in step.replay.block_tables
    ]
    neighbours = step.neighbours
    if neighbours is not None:
        neighbours = UndoEntry(neighbours.step, slots(neighbours.slots), neighbours.tensors)
    return replace(
        step,
        replay=replace(step.replay, block_tables=tables),
        live=np.sort(slots(step.live)),
        read=np.sort(slots(step.read)),
        neighbours=neighbours,
        owners={int(renamed[block]): names for block, names in step.owners.items()},
    )


def with_other_neighbours(window: Window, random: np.random.Generator) -> Window:
    most = max(int(step.replay.record.token_ids.max(initial=0)) for step in window.steps) + 1
    return replace(window, steps=[other_tokens(step, random, most) for step in window.steps])


def other_tokens(step: WindowStep, random: np.random.Generator, most: int) -> WindowStep:
    record = step.replay.record
    theirs: NDArray[np.bool_] = np.repeat(~step.involved, record.query_lengths)
    tokens = record.token_ids.copy()
    tokens[theirs] = random.integers(0, most, int(theirs.sum()))
    replay: ReplayStep = replace(step.replay, record=replace(record, token_ids=tokens))
    return replace(step, replay=replay)
