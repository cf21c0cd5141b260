"""The determinism gate: before anybody is convicted, the step repeats bit for bit in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from checkengine.replay.judge.intervals import clopper_pearson
from checkengine.replay.judge.repeat import name_difference
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.judge.wire import Job, pack
from checkengine.replay.playback import Bits
from checkengine.replay.window import Window, WindowStep

RUNS, PROCESSES = 20, 3
TIMEOUT = 600.0
"""Seconds for a process; one that hangs proves nothing."""
MODULE = "checkengine.replay.judge.fresh"


@dataclass(frozen=True, slots=True)
class Gate:
    """`environment`: as recorded; a fresh process finds the executor and loads the model by it."""

    environment: Mapping[str, Any]
    runs: int = RUNS
    processes: int = PROCESSES
    at_a_time: int = 2
    """Processes: each holds the model."""

    def check(self, window: Window, step: WindowStep, fill: float | None, expected: Bits) -> GateOutcome:
        """Run `step` after the window's steps before it, under a fill, and compare every op's bits with `expected`."""
        index = window.steps.index(step)
        prefix = replace(window, steps=window.steps[: index + 1])
        shares = [len(range(number, self.runs, self.processes)) for number in range(min(self.processes, self.runs))]
        outcome = GateOutcome(step, self.runs < RUNS or self.processes < PROCESSES)
        if not shares:
            return outcome
        jobs = [pack(Job(self.environment, prefix, fill, share)) for share in sorted(set(shares))]
        by_share = dict(zip(sorted(set(shares)), jobs, strict=True))
        with ThreadPoolExecutor(self.at_a_time) as pool:
            for share, told in zip(shares, pool.map(in_fresh_process, [by_share[s] for s in shares]), strict=True):
                outcome.take(told, share, expected)
        return outcome


@dataclass(slots=True)
class GateOutcome:
    step: WindowStep
    fewer: bool
    """Than RUNS in PROCESSES: the user wanted it so."""
    runs: int = 0
    processes: int = 0
    different: int = 0
    what: str = ""
    """The first op that differs, in words."""
    error: str = ""

    def take(self, told: Mapping[str, Any], runs: int, expected: Bits) -> None:
        if "bits" not in told:
            self.error = self.error or str(told.get("error", "it gave no answer"))
            return
        bits = tuple(tuple(entry) for entry in told["bits"])
        self.runs, self.processes = self.runs + runs, self.processes + 1
        if bits != expected:
            self.different += runs - len(told["different"])
            self.what = self.what or name_difference(expected, bits)
        elif told["different"]:
            self.different += len(told["different"])
            self.what = self.what or told["different"][0]

    @property
    def repeats(self) -> bool | None:
        """None where no fresh process could run the step."""
        return None if not self.runs else not self.different

    def result(self) -> TestResult:
        if not self.runs:
            return TestResult("gate", None, f"not run in a fresh process: {self.error or 'no runs were asked for'}")
        low, high = clopper_pearson(self.different, self.runs)
        numbers = {"runs": self.runs, "processes": self.processes, "different": self.different}
        numbers |= {"step": self.step.number}
        told = f"{self.runs} runs in {self.processes} fresh {'process' if self.processes == 1 else 'processes'}"
        few = f" (fewer than {RUNS} in {PROCESSES})" if self.fewer or self.error else ""
        if self.different:
            detail = f"{self.different} of {told}{few} give other bits, first {self.what}: {bound_words(low, high)}"
        else:
            detail = f"{told}{few} are bit-equal on every op: {bound_words(low, high)}"
        return TestResult("gate", not self.different, detail, {**numbers, "rate_low": low, "rate_high": high})


def bound_words(low: float, high: float) -> str:
    rate = f"at most {100 * high:.2g} %" if low == 0 else f"{100 * low:.2g} % to {100 * high:.3g} %"
    return f"at 95 % confidence {rate} of runs differ"


def in_fresh_process(job: bytes, command: Sequence[str] = (sys.executable, "-m", MODULE)) -> dict[str, Any]:
    """What the process told, or its error."""
    try:
        done = subprocess.run(command, input=job, capture_output=True, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        return {"error": words[-1][:300] if words else f"it ended with code {done.returncode}"}
    return told
