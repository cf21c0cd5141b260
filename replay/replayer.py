"""Re-run a capture with the recorded kernel and compare bits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from checkengine.guards.finding import Finding
from checkengine.replay.capture import Capture
from checkengine.replay.executor import Executor, StepOutput
from checkengine.replay.playback import Playback
from checkengine.replay.refire import GuardsFactory, Refire, fires
from checkengine.replay.window import ExactFrom, Window, WindowStep
from checkengine.replay.windows import build_window

ALL, SOME, NONE = "fingerprints and tokens", "tokens, and fingerprints where recorded", "tokens"
MISSING = {SOME: "were not recorded for every step", NONE: "were not recorded", ALL: "equal"}

Progress = Callable[[str, int, int], None]
"""(what runs, steps done, steps)."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    step: int
    row: int
    """Of the record's rows."""
    sequence: str
    what: str
    """"fingerprint" or "token"."""


@dataclass(slots=True)
class StepEquality:
    step: int
    rows: int
    equal_rows: int


@dataclass(slots=True)
class Replay:
    """What one replay of a window gave."""

    kernel: str
    free: bool
    from_step: int
    exact_from: ExactFrom
    compared: str
    """"fingerprints and tokens"; "tokens" where the record holds no fingerprints; else both, where recorded."""
    strip: list[StepEquality] = field(default_factory=list)
    first_difference: RowDifference | None = None
    findings: list[Finding] = field(default_factory=list)
    fired_before: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    outputs: list[StepOutput] = field(default_factory=list, repr=False)
    window: Window | None = field(default=None, repr=False)

    @property
    def steps(self) -> int:
        return len(self.strip)

    @property
    def rows(self) -> int:
        return sum(step.rows for step in self.strip)

    @property
    def equal_rows(self) -> int:
        return sum(step.equal_rows for step in self.strip)

    @property
    def bit_exact(self) -> bool:
        """Every involved row equal, by fingerprint; tokens alone are no proof of equal bits."""
        return self.rows > 0 and self.equal_rows == self.rows and self.compared == ALL

    def ran_hashed(self, window: Window) -> bool:
        """Was this made on that very window, with the recorded kernel and hashes of the ops?"""
        return self.window is window and not self.free and bool(self.outputs) and bool(self.outputs[-1].hashes)

    def words(self) -> str:
        if self.first_difference is None:
            how = "bit-exact" if self.bit_exact else f"equal (fingerprints {MISSING[self.compared]}):"
            return f"{how} {self.equal_rows} of {self.rows} rows in {self.steps} steps, from step {self.from_step}"
        d = self.first_difference
        return (
            f"{self.equal_rows} of {self.rows} rows equal; "
            f"first other {d.what} at step {d.step}, row {d.row}, sequence {d.sequence}"
        )

    def to_dict(self) -> dict[str, Any]:
        difference = asdict(self.first_difference) if self.first_difference else None
        return {
            "bit_exact": self.bit_exact,
            "from_step": self.from_step,
            "steps": self.steps,
            "rows": self.rows,
            "equal_rows": self.equal_rows,
            "first_difference": difference,
            "exact_from": self.exact_from,
            "compared": self.compared,
        }


class Replayer:
    """`guards` makes fresh guards for each replay; without it findings are not looked for."""

    def __init__(self, executor: Executor, capture: Capture, guards: GuardsFactory | None = None) -> None:
        self.executor = executor
        self.capture = capture
        self.guards = guards
        self.window: Window = build_window(capture)

    def replay(
        self,
        kernel: str | None = None,
        *,
        free: bool = False,
        hashes: bool = False,
        progress: Progress | None = None,
    ) -> Replay:
        """`free`: each involved sequence is fed its own replayed tokens; else the recorded ones. `hashes`: of every op,
        as the judge needs them."""
        began = time.monotonic()
        playback = Playback(self.executor, self.window, kernel=kernel, free=free, hashes=hashes)
        refire = Refire(self.guards(), self.window) if self.guards else None
        result = self._empty(kernel, free)
        for index, (step, output) in enumerate(playback):
            result.outputs.append(output)
            compare(self.window, step, output, result)
            if refire:
                refire.observe(step, output)
            if progress:
                progress(result.kernel, index + 1, len(self.window.steps))
        if refire:
            result.findings, result.fired_before = refire.findings, refire.before
        result.seconds = time.monotonic() - began
        return result

    def reproduced(self, replay: Replay) -> Finding | None:
        """The first recorded finding that fires again, same kind and same sequence."""
        return next((finding for finding in self.capture.findings if fires(finding, replay.findings)), None)

    def _empty(self, kernel: str | None, free: bool) -> Replay:
        records = [step.replay.record for step in self.window.steps]
        outcomes = [bool(len(record.fingerprints)) for record in records if len(record.sampled)]
        return Replay(
            kernel=kernel or records[0].kernel,
            free=free,
            from_step=records[0].step,
            exact_from=self.window.exact_from,
            window=self.window,
            compared=ALL if all(outcomes) else SOME if any(outcomes) else NONE,
        )


def compare(window: Window, step: WindowStep, output: StepOutput, result: Replay) -> None:
    """Every involved sampling row against the record; notes the first that differs."""
    record = step.replay.record
    rows = np.flatnonzero(record.samples)
    # The last step of a capture may have no outcome yet.
    chosen = np.flatnonzero(step.sampling_involved) if len(record.sampled) == len(rows) else rows[:0]
    different = {int(i): what for i in chosen if (what := differs(step, output, int(i)))}
    result.strip.append(StepEquality(step.number, len(chosen), len(chosen) - len(different)))
    for index, what in different.items():
        if result.first_difference is None:
            row = int(rows[index])
            result.first_difference = RowDifference(step.number, row, window.name_of(step, row), what)


def differs(step: WindowStep, output: StepOutput, index: int) -> str | None:
    """ "fingerprint", "token", or None where the sampling row equals its record."""
    record = step.replay.record
    prints = output.stats.fingerprint
    if len(record.fingerprints) and prints is not None and int(record.fingerprints[index]) != int(prints[index]):
        return "fingerprint"
    if int(record.sampled[index]) != int(output.tokens[index]):
        return "token"
    return None
