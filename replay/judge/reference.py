"""Does the fault go away under the kernel to trust?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkengine.guards.finding import Finding
from checkengine.replay.executor import StepOutput
from checkengine.replay.judge.repeat import Repeats
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.refire import GuardsFactory, Refire, fires
from checkengine.replay.window import Window, WindowStep


@dataclass(slots=True)
class ReferenceOutcome:
    kernel: str
    fires: bool | None
    """Whether the finding fires on the reference kernel's own tokens; None where there is no finding or no guard."""
    first_token: tuple[WindowStep, int, float] | None
    """First step, row and recorded kernel's margin (top-1 minus top-2 logit) at which the tokens differ."""

    def result(self) -> TestResult:
        if self.first_token is None:
            tokens = "the same tokens"
            numbers: dict[str, float | int | bool] = {}
        else:
            step, row, margin = self.first_token
            tokens = f"another token first at step {step.number}, row {row}, where the recorded margin is {margin:.3g}"
            numbers = {"step": step.number, "margin": margin}
        ending = {None: "", True: "; the finding fires there too", False: "; the finding does not fire there"}
        detail = f"the {self.kernel} kernel, fed with its own tokens, gives {tokens}{ending[self.fires]}"
        return TestResult("reference", None if self.fires is None else self.fires, detail, numbers)


def compare_reference(
    window: Window, repeats: Repeats, reference: Sequence[StepOutput], kernel: str, fired: bool | None
) -> ReferenceOutcome:
    """`reference`: outputs of the reference kernel's replay of the window on its own tokens, a step each."""
    for step, expected, output in zip(window.steps, repeats.outputs, reference, strict=True):
        changed = np.flatnonzero((output.tokens != expected.tokens) & step.sampling_involved)
        if len(changed):
            row = int(np.flatnonzero(step.replay.record.samples)[changed[0]])
            margin = expected.stats.margin
            return ReferenceOutcome(kernel, fired, (step, row, 0.0 if margin is None else float(margin[changed[0]])))
    return ReferenceOutcome(kernel, fired, None)


def try_reference(
    bench: Bench, repeats: Repeats, finding: Finding | None, guards: GuardsFactory | None
) -> ReferenceOutcome:
    """Free-running replay of the window under the executor's reference kernel."""
    refire = Refire(guards(), bench.window) if guards and finding else None
    outputs, kernel = [], bench.executor.reference
    for step, output in bench.steps(kernel=kernel, free=True):
        outputs.append(output)
        if refire:
            refire.observe(step, output)
    fired = fires(finding, refire.findings) if refire and finding else None
    return compare_reference(bench.window, repeats, outputs, kernel, fired)
