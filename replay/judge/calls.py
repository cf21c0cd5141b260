"""Every attention call of the suspect's rows against float64 on its own inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from checkengine.replay.judge.bound import bounded
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.op_call import OpCall, takes_calls
from checkengine.replay.window import WindowStep

MOST_CALLS = 1024
"""Looked at in one judgement, in whole steps: those next to the window's end first, the others evenly spread."""
MOST_ROWS = 4
"""Of a step: a call carries its layer's memory."""


@dataclass(slots=True)
class Beyond:
    """The first call whose output rounding does not explain."""

    step: WindowStep
    row: int
    call: OpCall
    output: torch.Tensor
    ratio: float
    """Error over bound at its worst."""
    memory: Any = None
    """The executor's, after the step."""


@dataclass(slots=True)
class CallsOutcome:
    calls: int = 0
    elements: int = 0
    steps: int = 0
    all_steps: int = 0
    worst: float = 0.0
    """Error over certain bound."""
    worst_likely: float = 0.0
    beyond: Beyond | None = None

    @property
    def numerics(self) -> bool:
        """Every output looked at lies inside the likely bound."""
        return self.calls > 0 and self.worst_likely <= 1

    def result(self) -> TestResult:
        numbers = {
            "calls": self.calls,
            "elements": self.elements,
            "steps": self.steps,
            "worst": self.worst,
            "worst_likely": self.worst_likely,
        }
        looked = f"{self.calls:,} attention calls of {self.steps} of {self.all_steps} steps"
        if self.beyond is not None:
            where = f"layer {self.beyond.call.layer}, step {self.beyond.step.number}"
            detail = f"{where}: error is {self.beyond.ratio:.3g} times what rounding can do at most, in any order"
            return TestResult("bound", False, detail, numbers)
        if self.numerics:
            detail = f"{looked} lie within {self.worst_likely:.2g} of the likely rounding bound (it fails once in 10⁹)"
            return TestResult("bound", True, detail, numbers)
        detail = f"{looked}: error is up to {self.worst:.2g} of the certain rounding bound, above the likely one"
        return TestResult("bound", None, detail, numbers)


def try_calls(bench: Bench) -> CallsOutcome | None:
    """One run of the window, some steps of it taken apart into calls. None where the executor offers none."""
    executor = bench.executor
    if not takes_calls(executor):
        return None
    chosen = {step.number for step in chosen_steps(bench)}
    outcome = CallsOutcome(steps=len(chosen), all_steps=len(bench.window.steps))
    for step, playback in bench.chosen(chosen):
        for call, output in executor.calls(step.replay, playback.memory, rows=rows_of(step)):
            if (ratio := look_at(call, output, outcome)) > 1:
                outcome.beyond = Beyond(step, call.row, call, output, ratio, playback.memory)
                return outcome
    return outcome


def look_at(call: OpCall, output: torch.Tensor, outcome: CallsOutcome) -> float:
    """The worst error over the certain bound in this call; counts it in."""
    found = bounded(call)
    worst = float(found.ratio(output).max())
    outcome.calls += 1
    outcome.elements += found.exact.numel()
    outcome.worst = max(outcome.worst, worst)
    outcome.worst_likely = max(outcome.worst_likely, float(found.likely_ratio(output).max()))
    return worst


def rows_of(step: WindowStep) -> list[int]:
    rows: list[int] = np.flatnonzero(step.involved)[:MOST_ROWS].tolist()
    return rows


def chosen_steps(bench: Bench) -> Sequence[WindowStep]:
    """Half of what may be looked at goes to the window's end."""
    steps = [step for step in bench.window.steps if step.involved.any()]
    layers = sum(len(layers) for layers in bench.window.image.layers.values())
    most = max(1, MOST_CALLS // max(1, layers * max((len(rows_of(step)) for step in steps), default=1)))
    if len(steps) <= most:
        return steps
    near = steps[len(steps) - max(1, most // 2) :]
    rest = steps[: len(steps) - len(near)]
    places = np.unique(np.linspace(0, len(rest) - 1, most - len(near)).round().astype(np.int64))
    return [*(rest[place] for place in places), *near]
