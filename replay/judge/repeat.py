"""Does the window repeat, bit for bit? Without that no other test means anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from checkengine.replay.executor import StepOutput
from checkengine.replay.judge.intervals import clopper_pearson
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import Number, TestResult
from checkengine.replay.op_call import OutputExecutor
from checkengine.replay.op_tree import OpTree, diverging
from checkengine.replay.playback import Bits, Playback, all_bits
from checkengine.replay.window import WindowStep

COUNTED = 20
"""Runs of a step that does not repeat, for the bound on how often it does not."""


@dataclass(slots=True)
class Repeats:
    """`outputs` are the first run's, aligned with the window's steps."""

    outputs: list[StepOutput]
    times: int
    first_difference: tuple[WindowStep, str] | None = None
    bits: list[Bits] = field(default_factory=list)
    as_recorded: bool = False
    """The second run is the recorded one."""
    different: int = 0
    """Of `counted` more runs of the step that differed first, those with other bits than the first run."""
    counted: int = 0
    where: tuple[int | None, int | None] = (None, None)
    """Row of the record and layer of the first op that differs; the layer is None where only logits do."""
    op: str | None = None
    token: int | None = None
    """Of the row's, in that op: the first whose output differs."""
    heads: tuple[int, ...] = ()
    """Of attention: from the first that differs to the last, in that token."""

    def result(self) -> TestResult:
        numbers: dict[str, Number] = {"runs": self.times, "steps": len(self.outputs)}
        if self.as_recorded:
            return TestResult("repeat", True, f"record and replay of {len(self.outputs)} steps are bit-equal", numbers)
        if self.first_difference is None:
            return TestResult("repeat", True, f"{self.times} runs of {len(self.outputs)} steps are bit-equal", numbers)
        step, what = self.first_difference
        low, high = clopper_pearson(self.different, self.counted)
        detail = (
            f"runs on the same memory differ first at step {step.number}, {what}: {self.different} of {self.counted} "
            f"runs, {100 * low:.2g} % to {100 * high:.3g} % at 95 % confidence"
        )
        numbers |= {"different": self.different, "counted": self.counted, "rate_low": low, "rate_high": high}
        return TestResult("repeat", False, detail, numbers)


def run_first(bench: Bench, made: Sequence[StepOutput] | None) -> Repeats:
    """One run of the window with hashes; `made` is one that was made already."""
    outputs = list(made) if made is not None else [output for _, output in bench.steps()]
    bits = [all_bits(step, output) for step, output in zip(bench.window.steps, outputs, strict=True)]
    return Repeats(outputs, 1, bits=bits)


def repeat(bench: Bench, repeats: Repeats, times: int, keep: int | None = None) -> Any:
    """Run the window again on fresh copies of its memory until it ran `times` times or differs from the first run.

    Returns memory as it was before the step of index `keep`, from the last run that reached it.
    """
    kept = None
    while repeats.times < times and repeats.first_difference is None:
        repeats.times += 1
        playback = bench.playback()
        for index, step in enumerate(bench.window.steps):
            if index == keep:
                kept = bench.executor.copy(playback.memory)
            bits = all_bits(step, playback.run(step))
            if bits != repeats.bits[index]:
                repeats.first_difference = step, name_difference(repeats.bits[index], bits)
                note_place(repeats, step, repeats.bits[index], bits)
                count(bench, repeats, playback, index)
                break
    return kept


def note_place(repeats: Repeats, step: WindowStep, expected: Bits, found: Bits) -> None:
    for before, after in zip(expected, found, strict=False):
        if before != after:
            repeats.op = str(before[0])
            if before[0] == "logits":
                rows = np.flatnonzero(step.replay.record.samples)
                repeats.where = int(rows[int(before[1])]), None
            else:
                repeats.where = int(before[2]), int(before[1])
            return


def count(bench: Bench, repeats: Repeats, playback: Playback, index: int) -> None:
    """How many of COUNTED more runs of the step differ from its first run; the one just made counts too."""
    step, expected = bench.window.steps[index], repeats.bits[index]
    again = (all_bits(step, bench.run_again(step, playback.memory)) for _ in range(COUNTED - 1))
    repeats.different, repeats.counted = 1 + sum(bits != expected for bits in again), COUNTED
    drill(bench.executor, repeats, step, playback.memory)


def drill(executor: object, repeats: Repeats, step: WindowStep, memory: Any) -> None:
    """Where in the op's output runs first differ, by hashes of halves."""
    row, layer = repeats.where
    if row is None or layer is None or repeats.op is None or not isinstance(executor, OutputExecutor):
        return
    outputs = (executor.output(step.replay, memory, op=repeats.op, layer=layer, row=row) for _ in range(COUNTED))
    first = next(outputs)
    tree = OpTree(first)
    for output in outputs:
        found = diverging(tree.range, OpTree(output).range, tree.elements)
        if found is not None:
            width = tree.elements // len(first)
            repeats.token, element = divmod(found.first, width)
            if first.dim() == 3:
                last = found.last - repeats.token * width if found.last // width == repeats.token else width - 1
                repeats.heads = tuple(range(element // first.shape[2], last // first.shape[2] + 1))
            return


def name_difference(expected: Bits, found: Bits) -> str:
    """The first op, layer and row that differ, in words."""
    for before, after in zip(expected, found, strict=False):
        if before != after:
            if before[0] == "logits":
                return f"logits of sampling row {before[1]}"
            return f"{before[0]} of layer {before[1]}, row {before[2]}"
    return "the set of ops that ran"
