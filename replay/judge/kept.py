"""The record's bits do not come again. Did a step go wrong once, or had memory changed under it?

Every step of the window is run by itself, on memory as the capture tells that it was before that step. A step that went
wrong once is the only one which does not follow from its memory: what it left behind is in the memory of the steps
after it; and it is the one in which a replay of the window leaves the record. Memory that something changed between two
steps is in the capture as it was in the end: the steps before the change that read it do not follow from it, those
after do. Where the changed slot was written in the window itself, the window's replay writes it right and leaves the
record only after the change: behind the steps that do not follow, be it a single one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.op_call import Ints, OpCall, takes_calls
from checkengine.replay.playback import Playback
from checkengine.replay.replayer import Replay, differs
from checkengine.replay.window import Window, WindowStep

WindowAt = Callable[[int], Window]
"""The window of one step alone, by its number."""


@dataclass(slots=True)
class KeptOutcome:
    steps: list[int]
    """Looked at, in order."""
    unlike: list[int]
    """Those that, by themselves, do not follow from the captured memory."""
    changed: Ints
    """Own slots written in the window whose bytes in the capture are not those that replay wrote there."""
    first: int
    """The step in which the window's replay first differs from the record."""

    @property
    def overwritten(self) -> bool:
        """Memory changed between steps: none goes wrong by itself, several in a row do, or only ones that a replay of
        the window gives as recorded."""
        if not self.unlike:
            return len(self.steps) > 1
        places = [self.steps.index(step) for step in self.unlike]
        in_a_row = places == list(range(places[0], places[-1] + 1))
        return in_a_row and (len(places) > 1 or self.unlike[-1] < self.first)

    @property
    def since(self) -> int | None:
        """The step before which memory changed, as far as the window tells."""
        if not self.unlike:
            return self.first
        return next((step for step in self.steps if step > self.unlike[-1]), None)

    def result(self) -> TestResult:
        numbers = {"steps": len(self.steps), "unlike": len(self.unlike), "slots_changed": len(self.changed)}
        told = (
            f"{len(self.steps) - len(self.unlike)} of {len(self.steps)} steps follow, each by itself, from the memory"
        )
        if self.overwritten:
            when = "" if self.since is None else f"; it changed before step {self.since}"
            return TestResult("memory", False, f"{told} of the capture{when}", numbers)
        only = f"all but step {self.unlike[0]}" if len(self.unlike) == 1 else "as it was"
        return TestResult("memory", True, f"{told} of the capture: {only}", numbers)


def try_kept(bench: Bench, replay: Replay, window_at: WindowAt | None) -> KeptOutcome | None:
    """None where steps cannot be had by themselves, or their memory is not known byte for byte."""
    difference = replay.first_difference
    if difference is None or window_at is None or replay.exact_from != "undo":
        return None
    outcome = KeptOutcome([], [], np.empty(0, np.int32), difference.step)
    for step in bench.window.steps:
        alone = follows(bench, window_at(step.number)) if step.sampling_involved.any() else None
        if alone is not None:
            outcome.steps.append(step.number)
            outcome.unlike += [] if alone else [step.number]
    if outcome.overwritten:
        outcome.changed = changed_slots(bench)
    return outcome


def follows(bench: Bench, window: Window) -> bool | None:
    """Does the only step of the window give its record's bits? None where the record tells none."""
    (step,) = window.steps
    record = step.replay.record
    if not len(record.fingerprints) or not len(record.sampled):
        return None
    bench.replays += 1
    output = Playback(bench.executor, window).run(step)
    return not any(differs(step, output, int(index)) for index in np.flatnonzero(step.sampling_involved))


def changed_slots(bench: Bench) -> Ints:
    """Own slots written in the window that hold other bytes in the capture than a replay of the window leaves there."""
    executor, window = bench.executor, bench.window
    nothing = np.empty(0, np.int32)
    *before, last = window.steps
    rows = np.flatnonzero(last.involved).tolist()
    if window.left is None or not takes_calls(executor) or not rows:
        return nothing
    playback = bench.playback()
    for step in before:
        playback.run(step)
    playback.prepare(last)
    slots = np.intersect1d(written_in(window.steps, window.image.block_size), window.left.slots).astype(np.int32)
    calls = executor.calls(last.replay, playback.memory, rows=rows[:1])
    return np.unique(np.concatenate([nothing, *(slots[differing(window, call, slots)] for call, _ in calls)]))


def written_in(steps: list[WindowStep], size: int) -> Ints:
    """Slots that involved rows wrote."""
    written = [np.empty(0, np.int32)]
    for step in steps:
        record = step.replay.record
        for row in np.flatnonzero(step.involved).tolist():
            positions = np.arange(record.starts[row], record.starts[row] + record.query_lengths[row])
            written.append(step.replay.block_tables[row][positions // size] * size + positions % size)
    return np.unique(np.concatenate(written)).astype(np.int32)


def differing(window: Window, call: OpCall, slots: Ints) -> np.ndarray:
    """Which of the slots hold, in this call's layer, other bytes than the capture's."""
    assert window.left is not None
    at = torch.from_numpy(np.searchsorted(window.left.slots, slots).astype(np.int64))
    rows = torch.from_numpy(np.searchsorted(call.blocks, slots // call.block_size).astype(np.int64))
    offsets = torch.from_numpy((slots % call.block_size).astype(np.int64))
    found = np.zeros(len(slots), np.bool_)
    for group, layers in window.image.layers.items():
        if call.layer not in layers:
            continue
        for part, memory in (("key", call.keys), ("value", call.values)):
            recorded = window.left.tensors[f"{group}.{part}"][at][:, list(layers).index(call.layer)]
            replayed = memory[rows, offsets]
            equal = (recorded == replayed) | (recorded.isnan() & replayed.isnan())
            found |= (~equal.flatten(1).all(1)).numpy()
    return found
