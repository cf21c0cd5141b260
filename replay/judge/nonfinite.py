"""Where does a number first stop being finite, or a row of logits being one?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from checkengine.replay.executor import OpHash, StepOutput
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.memory import MemoryImage
from checkengine.replay.record import Ints
from checkengine.replay.window import Window, WindowStep

HEAD = -1
CONSTANT = "constant logits"
"""One number for the whole vocabulary: no head gives that, and what cleans NaN out of logits leaves it."""


@dataclass(slots=True)
class Nonfinite:
    """The first op with NaN or infinity in an involved row."""

    step: WindowStep
    row: int
    op: str
    layer: int
    """-1: after the last layer."""
    stale: Ints
    """Slots of the involved sequences that held NaN or infinity before the window's first step."""
    reference_finite: bool
    """The reference kernel gives finite numbers for the same op on the same memory."""

    def result(self) -> TestResult:
        where = f"{self.op} (head)" if self.layer == HEAD else f"{self.op} of layer {self.layer}"
        twin = "in order" if self.reference_finite else "not in order either"
        detail = (
            f"first not finite, or a constant: {where} at step {self.step.number}; {twin} with the reference kernel"
        )
        if len(self.stale):
            detail += f"; {len(self.stale)} slots of KV held NaN or infinity before the window began"
        numbers = {"step": self.step.number, "layer": self.layer, "stale_slots": len(self.stale)}
        return TestResult("finite", False, detail, numbers)


def first_nonfinite_step(window: Window, outputs: Sequence[StepOutput]) -> int | None:
    """Index of the first step in which an involved row's op or logits are not finite."""
    steps = zip(window.steps, outputs, strict=True)
    return next((index for index, (step, output) in enumerate(steps) if first_nonfinite(step, output)), None)


def judge_nonfinite(bench: Bench, whole: Window, output: StepOutput) -> Nonfinite:
    """The first op that is not finite in the bench's only step, checked against the reference kernel on the memory
    that the recorded kernel left before it. `whole` is the window that the step belongs to."""
    (step,) = bench.window.steps
    found = first_nonfinite(step, output)
    if found is None:
        raise ValueError("every op of the step is finite")
    row, op, layer = found
    twin = bench.playback(kernel=bench.executor.reference).run(step)
    finite = not (same_op(twin, row, op, layer) or (layer == HEAD and first_nonfinite(step, twin)))
    return Nonfinite(step, row, op, layer, stale_slots(whole.image, whole.steps[0].live), finite)


def first_nonfinite(step: WindowStep, output: StepOutput) -> tuple[int, str, int] | None:
    for entry in output.hashes:
        if not entry.finite and step.involved[entry.row]:
            return entry.row, entry.op, entry.layer
    rows = np.flatnonzero(step.replay.record.samples)
    constant = output.stats.maximum == output.stats.minimum
    for index in np.flatnonzero(step.sampling_involved & (output.stats.nonfinite | constant)):
        return int(rows[index]), "logits" if output.stats.nonfinite[index] else CONSTANT, HEAD
    return None


def same_op(output: StepOutput, row: int, op: str, layer: int) -> OpHash | None:
    """The op's entry where it is not finite."""
    return next((e for e in output.hashes if (e.row, e.op, e.layer) == (row, op, layer) and not e.finite), None)


def stale_slots(image: MemoryImage, slots: Ints) -> Ints:
    """Those of the slots that hold NaN or infinity in any layer."""
    row = {int(block): index for index, block in enumerate(image.blocks)}
    rows = torch.tensor([row[block] for block in (slots // image.block_size).tolist()], dtype=torch.long)
    offsets = torch.from_numpy((slots % image.block_size).astype(np.int64))
    bad = np.zeros(len(slots), np.bool_)
    for tensor in image.tensors.values():
        bad |= (~torch.isfinite(tensor[rows, :, offsets]).flatten(1).all(1)).numpy()
    return slots[bad]
