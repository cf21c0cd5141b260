"""Run the guards on replayed steps: does the finding fire again?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats
from checkengine.guards.finding import Finding
from checkengine.guards.step import SequenceStart, StepView
from checkengine.replay.executor import StepOutput
from checkengine.replay.window import Window, WindowStep


class Guards(Protocol):
    """All guards, as guards.pipeline.Pipeline runs them."""

    def begin(self, start: SequenceStart) -> None: ...

    def observe(self, step: StepView) -> Iterable[Finding]: ...


GuardsFactory = Callable[[], Guards]


class Refire:
    """Guards primed with what each involved sequence had put out before the window, then fed step by step."""

    def __init__(self, guards: Guards, window: Window) -> None:
        self._guards = guards
        self._window = window
        self._outputs = first_outputs(window)
        self.before: list[Finding] = []
        """Found on the tokens before the window already: the window cannot show it again."""
        self.findings: list[Finding] = []
        for start in window.starts.values():
            guards.begin(start)
        self._prime()

    def _prime(self) -> None:
        longest = max((len(tokens) for tokens in self._outputs.values()), default=0)
        for index in range(longest):
            rows = [handle for handle, tokens in self._outputs.items() if len(tokens) > index]
            step = self._window.steps[0].number - longest + index
            tokens = [self._outputs[handle][index] for handle in rows]
            self.before += self._guards.observe(self._view(step, 0.0, rows, tokens, [index] * len(rows), None))

    def observe(self, step: WindowStep, output: StepOutput, tokens: Mapping[int, int] | None = None) -> None:
        """`tokens` by sampling row stand for the replay's own where the record is to be followed."""
        record = step.replay.record
        chosen = np.flatnonzero(step.sampling_involved)
        if not len(chosen):
            return
        rows = record.sampling_handles[chosen].tolist()
        sampled = [int(output.tokens[i]) for i in chosen] if tokens is None else [tokens[int(i)] for i in chosen]
        counts = [len(step.replay.outputs[handle]) for handle in rows]
        view = self._view(step.number, record.time_ns * 1e-9, rows, sampled, counts, take(output.stats, chosen))
        self.findings += self._guards.observe(view)

    def _view(
        self, step: int, time: float, rows: list[int], tokens: list[int], counts: list[int], stats: RowStats | None
    ) -> StepView:
        starts = [self._window.starts[handle] for handle in rows]
        return StepView(
            step=step,
            time=time,
            sequences=tuple(start.name for start in starts),
            tokens=tuple((token,) for token in tokens),
            stats=stats,
            prompt_lengths=np.array([len(start.prompt_tokens) for start in starts], np.int32),
            output_lengths=np.array(counts, np.int32),
        )


def first_outputs(window: Window) -> dict[int, list[int]]:
    """Output tokens of each involved sequence before its first sampling row in the window."""
    outputs: dict[int, list[int]] = {}
    for step in window.steps:
        for handle in step.replay.record.sampling_handles[step.sampling_involved].tolist():
            outputs.setdefault(handle, list(step.replay.outputs[handle]))
    return outputs


def take(stats: RowStats, rows: NDArray[np.int64]) -> RowStats:
    """Some rows of the statistics."""
    arrays: dict[str, Any] = {
        field.name: getattr(stats, field.name) for field in fields(stats) if field.name != "level"
    }
    chosen: dict[str, Any] = {name: None if array is None else array[rows] for name, array in arrays.items()}
    return replace(stats, **chosen)


def fires(finding: Finding, findings: Iterable[Finding]) -> bool:
    """Same kind, same sequence."""
    return any(found.kind == finding.kind and found.sequence == finding.sequence for found in findings)
