"""Does the fault go away under the kernel to trust?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkengine.guards.finding import Finding
from checkengine.replay.judge.repeat import Repeats
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.refire import GuardsFactory, Refire, fires
from checkengine.replay.window import WindowStep


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


def try_reference(
    bench: Bench, repeats: Repeats, finding: Finding | None, guards: GuardsFactory | None
) -> ReferenceOutcome:
    """Free-running replay of the window under the executor's reference kernel."""
    refire = Refire(guards(), bench.window) if guards and finding else None
    first: tuple[WindowStep, int, float] | None = None
    kernel = bench.executor.reference
    for expected, (step, output) in zip(repeats.outputs, bench.steps(kernel=kernel, free=True), strict=True):
        if refire:
            refire.observe(step, output)
        changed = np.flatnonzero((output.tokens != expected.tokens) & step.sampling_involved)
        if first is None and len(changed):
            row = int(np.flatnonzero(step.replay.record.samples)[changed[0]])
            margin = expected.stats.margin
            first = step, row, float("nan") if margin is None else float(margin[changed[0]])
    fired = fires(finding, refire.findings) if refire and finding else None
    return ReferenceOutcome(kernel, fired, first)
