"""Was an end token passed over? Exact, from tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from checkengine.guards.step import SequenceStart
from checkengine.replay.judge.repeat import Repeats
from checkengine.replay.judge.verdict import TestResult
from checkengine.replay.window import Window, WindowStep


@dataclass(frozen=True, slots=True)
class PassedStop:
    step: WindowStep
    row: int
    token: int
    """The end token."""
    index: int
    """Of the output token that should have been the last."""
    masked: bool
    """True: the largest logit was the end token and the engine committed another; False: it was committed and the
    sequence went on."""

    def result(self) -> TestResult:
        how = "the end token had the largest logit, greedy, and another was committed"
        if not self.masked:
            how = "the end token was committed and the sequence went on"
        detail = f"{how}: output token {self.index}, step {self.step.number}"
        return TestResult("stop", False, detail, {"token": self.token, "index": self.index, "step": self.step.number})


def find_passed_stop(window: Window, repeats: Repeats) -> PassedStop | None:
    """The first end token that did not end its sequence; `ignores_stop` sequences may go on."""
    for step, output in zip(window.steps, repeats.outputs, strict=True):
        record = step.replay.record
        rows = np.flatnonzero(record.samples)
        for sampled in np.flatnonzero(step.sampling_involved).tolist():
            row = int(rows[sampled])
            start = window.starts[int(record.handles[row])]
            if start.ignores_stop or not start.stop_tokens:
                continue
            before = list(step.replay.outputs[start.handle])
            passed = next((i for i, token in enumerate(before) if token in start.stop_tokens), None)
            if passed is not None:
                return PassedStop(step, row, before[passed], passed, masked=False)
            top = -1 if output.stats.argmax is None else int(output.stats.argmax[sampled])
            committed = int(record.sampled[sampled]) if len(record.sampled) else int(output.tokens[sampled])
            if top in start.stop_tokens and committed != top and plainly_greedy(start.sampling):
                return PassedStop(step, row, top, len(before), masked=True)
    return None


def plainly_greedy(sampling: Mapping[str, object]) -> bool:
    """Greedy and without penalties: the token is the largest logit's, nothing else may be."""
    neutral = {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
    return "temperature" in sampling and all(sampling.get(name, value) == value for name, value in neutral.items())


def no_passed_stop(starts: Mapping[int, SequenceStart]) -> TestResult:
    if not any(start.stop_tokens for start in starts.values()):
        return TestResult("stop", None, "the record names no end tokens")
    return TestResult("stop", True, "no end token was passed over in the window")
