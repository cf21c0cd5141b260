"""The exact test for an over-read: refill what nobody owns, run again, compare bits.

Two finite patterns and NaN (research: a masked read multiplies the slot by zero, which only NaN shows). The finite ones
are large and of opposite sign: whatever the sign of a query's sum, one of them dominates a softmax that reads it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from checkengine.replay.executor import StepOutput
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.playback import Bits, Playback, all_bits
from checkengine.replay.window import Window, WindowStep

FINITE_FILLS = (64.0, -64.0)
"""Finite in every dtype of a cache (FP8 E4M3 ends at 448, int8 at 127), exact in all of them, and no sum of products
with them overflows."""
NAN_FILL = math.nan
NO_NAN = ("float8_e8m0fnu", "float4_e2m1fn_x2")
"""Floating dtypes without NaN, as integers have none."""


def has_nan(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and str(dtype).removeprefix("torch.") not in NO_NAN


@dataclass(slots=True)
class Difference:
    """The first step whose bits depend on unowned slots. `memory` is under the first fill, after that step ran."""

    step: WindowStep
    row: int
    """Of the record's rows."""
    first_layer: int | None
    memory: Any
    filled: Playback
    """The replay under the first fill, after that step."""
    quiet: Bits
    """Of that step under the first fill."""
    fills: tuple[float, float]
    """Two fills that tell it: localisation swaps the second in for the first."""


@dataclass(slots=True)
class FillsOutcome:
    slots: int
    finite: Difference | None = None
    nan: Difference | None = None
    no_nan: str = ""
    """The cache's dtype, where it has no NaN."""

    def results(self) -> list[TestResult]:
        return [self._finite_result(), self._nan_result()]

    def _finite_result(self) -> TestResult:
        numbers = {"unowned_slots": self.slots}
        if self.finite is None:
            return TestResult("fills", True, f"no bit depends on the {self.slots} unowned slots", numbers)
        detail = f"step {self.finite.step.number} gives other bits when unowned slots hold another finite pattern"
        return TestResult("fills", False, detail, numbers)

    def _nan_result(self) -> TestResult:
        if self.nan is None:
            if self.finite is not None:
                return TestResult("NaN fill", None, "not needed: finite fills tell it already")
            if self.no_nan:
                return TestResult("NaN fill", None, f"not run: {self.no_nan} has no NaN")
            return TestResult("NaN fill", True, "no bit changes when unowned slots hold NaN")
        return TestResult(
            "NaN fill", False, f"step {self.nan.step.number} gives other bits when unowned slots hold NaN"
        )


def try_fills(bench: Bench, captured: Sequence[Bits]) -> FillsOutcome:
    """Run the window under every fill, step by step side by side, to the first difference that finite numbers make.

    `captured`: the bits of the window as captured, a step each.
    """
    first, second = (bench.playback(fill=fill) for fill in FINITE_FILLS)
    outcome = FillsOutcome(len(bench.window.unowned(bench.window.steps[0])))
    dtypes = {tensor.dtype for tensor in bench.window.image.tensors.values()}
    outcome.no_nan = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes if not has_nan(dtype)))
    nan = None if outcome.no_nan else bench.playback(fill=NAN_FILL)
    for step, own in zip(bench.window.steps, captured, strict=True):
        runs = [own, all_bits(step, first.run(step)), all_bits(step, second.run(step))]
        if pair := finite_pair(runs, bench.window):
            outcome.finite = difference(step, runs[pair[0]], runs[pair[1]], first, runs[1], FINITE_FILLS)
            break
        if outcome.nan is None and nan is not None:
            filled = all_bits(step, nan.run(step))
            if filled != runs[1]:
                outcome.nan = difference(step, runs[1], filled, first, runs[1], (FINITE_FILLS[0], NAN_FILL))
    return outcome


def finite_pair(runs: list[Bits], window: Window) -> tuple[int, int] | None:
    """Which of captured, first and second fill differ, where all that was swapped is finite."""
    if runs[1] != runs[2]:
        return 1, 2
    return (0, 1) if runs[0] != runs[1] and is_finite(window) else None


def is_finite(window: Window) -> bool:
    """Is all memory that the window starts from, or that others write into it, finite?"""
    parts = [window.image.tensors, *(step.neighbours.tensors for step in window.steps if step.neighbours)]
    return all(bool(torch.isfinite(tensor.float()).all()) for tensors in parts for tensor in tensors.values())


def difference(
    step: WindowStep, expected: Bits, found: Bits, filled: Playback, quiet: Bits, fills: tuple[float, float]
) -> Difference:
    row, layer = where_different(step, expected, found)
    return Difference(step, row, layer, filled.executor.copy(filled.memory), filled, quiet, fills)


def where_different(step: WindowStep, expected: Bits, found: Bits) -> tuple[int, int | None]:
    """Row of the record and first layer that differ; the layer is None where only the logits do."""
    for before, after in zip(expected, found, strict=True):
        if before != after:
            if before[0] == "logits":
                return int(np.flatnonzero(step.replay.record.samples)[int(before[1])]), None
            return int(before[2]), int(before[1])
    raise ValueError("the bits are equal")


def layer_bits(step: WindowStep, output: StepOutput, row: int) -> Bits:
    """Bits of one row of the record."""
    sampling = np.flatnonzero(step.replay.record.samples)
    return tuple(
        bits for bits in all_bits(step, output) if (sampling[int(bits[1])] if bits[0] == "logits" else bits[2]) == row
    )
