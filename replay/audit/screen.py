"""The cheap test of an audit: one run with all unowned memory refilled must give the recorded bits.

It is repetition and fill in one: the record is the first run. Where the record holds no fingerprints (screened logits,
a prefill chunk that does not sample) a second run under another fill takes its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from checkengine.replay.capture import Capture
from checkengine.replay.executor import Executor
from checkengine.replay.judge.fills import FINITE_FILLS
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.playback import Playback, all_bits
from checkengine.replay.window import Window, WindowStep
from checkengine.replay.windows import build_window

NAN_SHARE = 0.75
"""NaN shows every read, masked ones too, unless a kernel launders it; the other screens use a finite number."""


@dataclass(frozen=True, slots=True)
class Screened:
    quiet: bool
    rows: int
    against: str
    """"recorded", or "same" where two fills were compared."""
    fill: float
    replays: int
    exact: bool
    """Is the memory that the step read known byte for byte?"""

    def result(self) -> TestResult:
        how = "give" if self.quiet else "do not give"
        detail = f"{self.rows} rows {how} the {self.against} bits under fill {self.fill:g}"
        numbers = {"rows": self.rows, "replays": self.replays}
        return TestResult("screen", self.quiet, detail, numbers)


def screen(executor: Executor, capture: Capture, rows: frozenset[int], random: np.random.Generator) -> Screened:
    """Run the capture's last step with `rows` as they were. Memory that any of them owns is left alone: a read of one
    row's slot by another of them is not seen here. Raises CannotReplayError."""
    last = capture.window.last_step
    involved = capture.involved if capture.environment.get("all_rows") else rows
    window = build_window(capture, involved=involved, first=last, last=last)
    (step,) = window.steps
    finite = float(random.choice(FINITE_FILLS))
    fill = math.nan if random.random() < NAN_SHARE else finite
    exact = window.exact_from == "undo"
    if has_prints(step):
        quiet = gives_recorded(executor, window, step, fill)
        return Screened(quiet, int(step.involved.sum()), "recorded", fill, 1, exact)
    first, second = (Playback(executor, window, fill=value, hashes=True) for value in (fill, -finite))
    quiet = all_bits(step, first.run(step)) == all_bits(step, second.run(step))
    return Screened(quiet, int(step.involved.sum()), "same", fill, 2, exact)


def has_prints(step: WindowStep) -> bool:
    """Does the record tell the bits of every involved row?"""
    record = step.replay.record
    samples = bool(record.samples[step.involved].all())
    return samples and len(record.fingerprints) == len(record.sampling_handles)


def gives_recorded(executor: Executor, window: Window, step: WindowStep, fill: float) -> bool:
    prints = Playback(executor, window, fill=fill).run(step).stats.fingerprint
    chosen = step.sampling_involved
    return prints is not None and np.array_equal(prints[chosen], step.replay.record.fingerprints[chosen])
