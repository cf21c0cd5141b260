"""The record's bits do not come again. Did a step go wrong once, or had memory changed under it?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.op_call import Ints, OpCall, takes_calls
from checkengine.replay.replayer import Replay
from checkengine.replay.window import Window


@dataclass(slots=True)
class KeptOutcome:
    """`changed`: own slots written in the window whose bytes in the capture are not those that replay wrote there, and
    that were written before the step which first shows it; `first`: that step."""

    changed: Ints
    first: int
    looked_at: int
    healed: int | None = None
    """The step from which on the record's bits come again, although none changed its tokens: memory of before the
    window was overwritten then, and replay had the later bytes from the start."""

    @property
    def found(self) -> bool:
        return len(self.changed) > 0 or self.healed is not None

    def result(self) -> TestResult:
        numbers = {"slots": self.looked_at, "changed": len(self.changed), "step": self.first}
        if len(self.changed):
            detail = (
                f"{len(self.changed)} slots, first {int(self.changed[0]):,}, hold other bytes in the capture than were "
                f"written there before step {self.first}"
            )
            return TestResult("memory", False, detail, numbers)
        if self.healed is not None:
            detail = f"the record differs up to step {self.healed - 1} and comes again from step {self.healed} on"
            return TestResult("memory", False, detail, numbers)
        return TestResult("memory", True, f"{self.looked_at} slots hold what was written there", numbers)


def try_kept(bench: Bench, replay: Replay) -> KeptOutcome | None:
    """None where the executor shows no memory, or nothing of the window is left. Replays the window once."""
    executor, window = bench.executor, bench.window
    difference = replay.first_difference
    if difference is None or window.left is None or not takes_calls(executor):
        return None
    *before, last = window.steps
    playback = bench.playback()
    for step in before:
        playback.run(step)
    playback.prepare(last)
    rows = np.flatnonzero(last.involved).tolist()
    written = written_at(window)
    if not rows or not written:
        return None
    calls = [call for call, _ in executor.calls(last.replay, playback.memory, rows=rows[:1])]
    slots = np.array(sorted(set(written) & set(window.left.slots.tolist())), np.int32)
    other = {int(slot) for call in calls for slot in slots[differing(window, call, slots)]}
    changed = np.array(sorted(slot for slot in other if written[slot] < difference.step), np.int32)
    return KeptOutcome(changed, difference.step, len(slots), None if len(other) else healed(replay))


def written_at(window: Window) -> dict[int, int]:
    """By slot: the step in which an involved row wrote it last."""
    written: dict[int, int] = {}
    size = window.image.block_size
    for step in window.steps:
        record = step.replay.record
        for row in np.flatnonzero(step.involved).tolist():
            positions = np.arange(record.starts[row], record.starts[row] + record.query_lengths[row])
            slots = step.replay.block_tables[row][positions // size] * size + positions % size
            written.update(dict.fromkeys(slots.tolist(), step.number))
    return written


def differing(window: Window, call: OpCall, slots: Ints) -> np.ndarray:
    """Which of the slots hold, in this call's layer, other bytes than the capture's."""
    assert window.left is not None
    at = torch.from_numpy(np.searchsorted(window.left.slots, slots).astype(np.int64))
    rows = torch.from_numpy(np.searchsorted(call.blocks, slots // call.block_size).astype(np.int64))
    offsets = torch.from_numpy((slots % call.block_size).astype(np.int64))
    found = np.zeros(len(slots), np.bool_)
    for name, layer in places_of(window, call.layer):
        memory = call.keys if name.endswith(".key") else call.values
        recorded, replayed = window.left.tensors[name][at][:, layer], memory[rows, offsets]
        equal = (recorded == replayed) | (recorded.isnan() & replayed.isnan())
        found |= (~equal.flatten(1).all(1)).numpy()
    return found


def places_of(window: Window, layer: int) -> Iterator[tuple[str, int]]:
    """Names of the tensors that hold a layer's keys and values, with the layer's place in them."""
    for group, layers in window.image.layers.items():
        if layer in layers:
            yield from ((f"{group}.{part}", list(layers).index(layer)) for part in ("key", "value"))


def healed(replay: Replay) -> int | None:
    """The step from which on everything is equal again; None where the record differs to its end, or only once."""
    unequal = [index for index, step in enumerate(replay.strip) if step.rows and step.equal_rows < step.rows]
    if len(unequal) < 2 or any(step.equal_rows == step.rows for step in replay.strip[: unequal[0]] if step.rows):
        return None
    rest = [step for step in replay.strip[unequal[-1] + 1 :] if step.rows]
    return rest[0].step if rest else None
