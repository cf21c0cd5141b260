"""One step that shows the fault, and what is taken away from it: the other rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.judge.verdict import Verdict
from checkengine.replay.minimise.reduce import keep_least
from checkengine.replay.record import Ints
from checkengine.replay.row_subset import step_of_rows
from checkengine.replay.window import Window, WindowStep
from checkengine.replay.windows import build_window


@dataclass(slots=True)
class StepCase:
    """A window of one step. `row` counts its record's rows."""

    window: Window
    row: int
    slots: Ints
    """Guilty ones that the row does not own; empty where none is told."""
    layers: tuple[int, ...]

    @property
    def step(self) -> WindowStep:
        return self.window.steps[0]

    @property
    def handle(self) -> int:
        return int(self.step.replay.record.handles[self.row])

    @property
    def rows(self) -> int:
        return len(self.step.replay.record.handles)

    @property
    def tokens(self) -> int:
        """That all rows may read."""
        record = self.step.replay.record
        return int((record.starts + record.query_lengths).sum())


def one_step(capture: Capture, verdict: Verdict) -> StepCase:
    """The verdict's step alone, with the guilty row's content; all other rows are stand-ins of equal shape, but where a
    model mixes rows. CannotReplayError where the verdict names no step and row."""
    record = next((record for record in capture.window.records if record.step == verdict.step), None)
    own = {handle for handle, start in capture.window.starts.items() if start.name == verdict.sequence}
    rows = [] if record is None else np.flatnonzero(np.isin(record.handles, list(own))).tolist()
    if record is None or not rows:
        raise CannotReplayError("the verdict names no step and no sequence of the capture: there is nothing to shrink")
    handles = capture.involved if capture.environment.get("all_rows") else {int(record.handles[rows[0]])}
    window = build_window(capture, involved=handles, first=record.step, last=record.step)
    named = np.array([place.slot for place in verdict.slots], np.int32)
    # A verdict on what was left out names slots of the row's own: they say nothing under fills.
    slots = np.intersect1d(named, window.unowned(window.steps[0])).astype(np.int32)
    return StepCase(window, int(rows[0]), slots, verdict.layers)


def fewer_rows(case: StepCase, accept: Callable[[StepCase], bool]) -> StepCase:
    """The guilty row and as few others as still let it show the fault, by weight in tokens."""
    record, best = case.step.replay.record, case
    others = [row for row in range(case.rows) if row != case.row]
    lengths = (record.starts + record.query_lengths).tolist()

    def shows(rows: list[int]) -> bool:
        nonlocal best
        candidate = with_rows(case, sorted([*rows, case.row]))
        if not accept(candidate):
            return False
        best = candidate
        return True

    keep_least(others, [lengths[row] for row in others], shows)
    return best


def with_rows(case: StepCase, rows: list[int]) -> StepCase:
    """The step without the other rows."""
    step = step_of_rows(case.step, np.array(rows))
    return replace(case, window=replace(case.window, steps=[step]), row=rows.index(case.row))
