"""Another shape: the suspect's rows alone. Healthy code gives other bits there, so it convicts nobody; it tells whether
the company that a row had in its batch is enough to explain a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from checkengine.replay.executor import StepOutput
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.row_subset import step_of_rows
from checkengine.replay.window import WindowStep


@dataclass(frozen=True, slots=True)
class ShapeOutcome:
    step: WindowStep | None
    """The first in which the suspect takes another token alone than in its batch."""
    row: int = 0
    margin: float = 0.0
    """Top-1 minus top-2 logit, as recorded."""

    def result(self) -> TestResult:
        if self.step is None:
            return TestResult("shape", None, "alone, without its neighbours, the sequence takes the same tokens")
        detail = (
            f"alone, without its neighbours, the sequence takes another token at step {self.step.number}, "
            f"where the recorded margin is {self.margin:.3g}"
        )
        return TestResult("shape", None, detail, {"step": self.step.number, "margin": self.margin})


def try_shape(bench: Bench, outputs: Sequence[StepOutput]) -> ShapeOutcome | None:
    """None where the batch had no other rows. `outputs`: of the window in its own shape, a step each."""
    if all(step.involved.all() for step in bench.window.steps):
        return None
    steps = [alone(step) for step in bench.window.steps]
    trial = Bench(bench.executor, replace(bench.window, steps=steps), memory=bench.memory)
    found = first_other_token(trial, outputs, bench.window.steps)
    bench.replays += trial.replays
    return found


def first_other_token(trial: Bench, outputs: Sequence[StepOutput], whole: Sequence[WindowStep]) -> ShapeOutcome:
    playback = trial.playback(free=True)
    for step, original, expected in zip(trial.window.steps, whole, outputs, strict=True):
        if not step.involved.any():
            playback.prepare(step)  # What others wrote there is put back all the same.
            continue
        output = playback.run(step)
        chosen = np.flatnonzero(original.sampling_involved)
        changed = np.flatnonzero(output.tokens != expected.tokens[chosen])
        if len(changed):
            index = int(chosen[changed[0]])
            row = int(np.flatnonzero(original.replay.record.samples)[index])
            margin = expected.stats.margin
            return ShapeOutcome(original, row, 0.0 if margin is None else float(margin[index]))
    return ShapeOutcome(None)


def alone(step: WindowStep) -> WindowStep:
    """The step with the involved rows only."""
    return step_of_rows(step, np.flatnonzero(step.involved))
