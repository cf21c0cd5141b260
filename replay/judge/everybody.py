"""All rows of the batch as they were: does the record come again in its own company, and not among stand-ins?

A fault may depend on what the rows beside it hold, on their tables, on a prefix that they share. Among stand-ins of
equal shape it does not come again, and looks like something that came once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.replayer import Replay, differs
from checkengine.replay.window import Window

Everybody = Callable[[], Window | None]
"""The judged window with every row as recorded; None where the capture does not hold them all."""


@dataclass(slots=True)
class EverybodyOutcome:
    again: bool | None
    """Whether the suspect's rows give the record's bits among all rows as they were; None where that cannot be run."""
    window: Window | None = None
    """With all rows as they were, of which only the suspect's count as involved."""

    def result(self) -> TestResult:
        if self.again is None:
            detail = "not run: the capture does not hold the memory and tokens of every row that ran beside the suspect"
            return TestResult("all rows", None, detail)
        if self.again:
            detail = "with every row as it was the record's bits come again, among stand-ins of equal shape they do not"
            return TestResult("all rows", False, detail)
        return TestResult("all rows", True, "with every row as it was the record's bits do not come again either")


def try_everybody(bench: Bench, replay: Replay, everybody: Everybody | None) -> EverybodyOutcome:
    """`replay` did not give the record's bits on the bench's window."""
    if all(step.involved.all() for step in bench.window.steps):
        return EverybodyOutcome(False)
    window = everybody() if everybody is not None else None
    if window is None or window.exact_from != "undo" or replay.exact_from != "undo":
        return EverybodyOutcome(None)
    own = narrowed(window, bench.window)
    trial = Bench(bench.executor, own)
    again = all(
        differs(step, output, int(index)) is None
        for step, output in trial.steps()
        for index in np.flatnonzero(step.sampling_involved)
        if len(step.replay.record.sampled)
    )
    bench.replays += trial.replays
    return EverybodyOutcome(again, own)


def narrowed(window: Window, suspects: Window) -> Window:
    """The window with the rows of `suspects` as the only ones that are looked at."""
    handles = list(suspects.starts)
    steps = [replace(step, involved=np.isin(step.replay.record.handles, handles)) for step in window.steps]
    return replace(window, steps=steps)
