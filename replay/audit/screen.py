"""The cheap test of an audit: one run with all unowned memory refilled must give the recorded bits.

It is repetition and fill in one: the record is the first run. Where the record holds no fingerprints (screened logits,
a prefill chunk that does not sample) a second run under another fill takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from checkengine.replay.capture import Capture
from checkengine.replay.executor import Executor
from checkengine.replay.judge.fills import FINITE_FILLS
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.playback import Playback, all_bits
from checkengine.replay.window import WindowStep
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


def screen(
    executor: Executor, capture: Capture, rows: frozenset[int], random: np.random.Generator, prints: Mapping[int, int]
) -> Screened:
    """Run the capture's last step with `rows` as they were. Memory that any of them owns is left alone: a read of one
    row's slot by another of them is not seen here. Raises CannotReplayError."""
    last = capture.window.last_step
    involved = capture.involved if capture.environment.get("all_rows") else rows
    window = build_window(capture, involved=involved, first=last, last=last)
    (step,) = window.steps
    finite = float(random.choice(FINITE_FILLS))
    fill = math.nan if random.random() < NAN_SHARE else finite
    exact, count = window.exact_from == "undo", int(step.involved.sum())
    served = served_prints(step, prints)
    if served is not None:
        found = Playback(executor, window, fill=fill).run(step).stats.fingerprint
        quiet = found is not None and found[step.sampling_involved].tolist() == served
        return Screened(quiet, count, "recorded", fill, 1, exact)
    first, second = (Playback(executor, window, fill=value, hashes=True) for value in (fill, -finite))
    quiet = all_bits(step, first.run(step)) == all_bits(step, second.run(step))
    return Screened(quiet, count, "same", fill, 2, exact)


def served_prints(step: WindowStep, prints: Mapping[int, int]) -> list[int] | None:
    """Fingerprints of the involved rows' logits as served; None where one of the rows has none."""
    record = step.replay.record
    if not record.samples[step.involved].all():
        return None
    handles = record.sampling_handles
    if len(record.fingerprints) == len(handles):
        prints = dict(zip(handles.tolist(), record.fingerprints.tolist(), strict=True))
    found = [prints.get(handle) for handle in handles[step.sampling_involved].tolist()]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None
