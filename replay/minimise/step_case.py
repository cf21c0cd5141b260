"""One step that shows the fault, and what is taken away from it: the other rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError, Executor, ReplayStep, StepOutput
from checkengine.replay.judge.fills import FINITE_FILLS, NAN_FILL, layer_bits
from checkengine.replay.judge.nonfinite import first_nonfinite, same_op
from checkengine.replay.judge.verdict import Verdict
from checkengine.replay.minimise.budget import Budget
from checkengine.replay.minimise.reduce import keep_least
from checkengine.replay.minimise.symptom import Shown
from checkengine.replay.playback import Bits, Playback
from checkengine.replay.record import Ints
from checkengine.replay.window import Window, WindowStep
from checkengine.replay.windows import build_window


@dataclass(slots=True)
class StepCase:
    """A window of one step. `row` counts its record's rows."""

    window: Window
    row: int
    slots: Ints
    """Guilty ones, empty where a number is not finite."""
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
    slots = np.array([place.slot for place in verdict.slots], np.int32)
    return StepCase(window, int(rows[0]), slots, verdict.layers)


class StepOracle:
    """Runs one step on one memory: a step writes its own slots before it reads them, so it may run again and again."""

    def __init__(self, executor: Executor, case: StepCase, budget: Budget) -> None:
        self.executor, self.case, self.budget = executor, case, budget
        playback = Playback(executor, case.window, fill=FINITE_FILLS[0], hashes=True)
        playback.prepare(case.step)
        self.memory: Any = playback.memory
        self.guilty = case.slots if len(case.slots) else case.window.unowned(case.step)
        self.shown: Shown | None = None

    def see(self) -> Shown | None:
        """How the step shows a fault, if it does; `accept` asks for the same from then on."""
        # A verdict that names slots came from fills.
        order = list(Shown) if len(self.case.slots) else [Shown.NOT_FINITE, Shown.FINITE_FILL, Shown.NAN_FILL]
        for shown in order:
            if self._shows(self.case, shown):
                self.shown = shown
                break
        return self.shown

    def accept(self, case: StepCase) -> bool:
        return self.shown is not None and self._shows(case, self.shown)

    def _shows(self, case: StepCase, shown: Shown) -> bool:
        """The named symptom, twice alike."""
        if shown is Shown.NOT_FINITE:
            return self._not_finite(case)
        quiet, finite = self._bits(case, FINITE_FILLS[0]), self._bits(case, FINITE_FILLS[1])
        if shown is Shown.FINITE_FILL:
            return quiet != finite and self._bits(case, FINITE_FILLS[1]) == finite
        if quiet != finite:
            return False
        found = self._bits(case, NAN_FILL)
        return found != quiet and self._bits(case, NAN_FILL) == found

    def _not_finite(self, case: StepCase) -> bool:
        output = self._run(case)
        found = first_nonfinite(case.step, output)
        if found is None or found[0] != case.row:
            return False
        row, op, layer = found
        twin = self._run(case, self.executor.reference)
        if same_op(twin, row, op, layer) or (layer == -1 and first_nonfinite(case.step, twin)):
            return False
        again = self._run(case)
        return layer_bits(case.step, again, row) == layer_bits(case.step, output, row)

    def _bits(self, case: StepCase, pattern: float) -> Bits:
        self.executor.write_slots(self.memory, self.guilty, pattern)
        bits = layer_bits(case.step, self._run(case), case.row)
        self.executor.write_slots(self.memory, self.guilty, FINITE_FILLS[0])
        return bits

    def _run(self, case: StepCase, kernel: str | None = None) -> StepOutput:
        self.budget.take()
        return self.executor.run(case.step.replay, self.memory, kernel=kernel, hashes=True)


def fewer_rows(case: StepCase, oracle: StepOracle) -> StepCase:
    """The guilty row and as few others as still let it show the fault, by weight in tokens."""
    record, best = case.step.replay.record, case
    others = [row for row in range(case.rows) if row != case.row]
    lengths = (record.starts + record.query_lengths).tolist()

    def shows(rows: list[int]) -> bool:
        nonlocal best
        candidate = with_rows(case, sorted([*rows, case.row]))
        if not oracle.accept(candidate):
            return False
        best = candidate
        return True

    keep_least(others, [lengths[row] for row in others], shows)
    return best


def with_rows(case: StepCase, rows: list[int]) -> StepCase:
    """The step without the other rows."""
    kept = np.array(rows)
    step = replace(case.step, replay=replay_of_rows(case.step.replay, kept), involved=case.step.involved[kept])
    return replace(case, window=replace(case.window, steps=[step]), row=rows.index(case.row))


def replay_of_rows(replay: ReplayStep, rows: NDArray[np.int64]) -> ReplayStep:
    record = replay.record
    chosen = np.zeros(len(record.handles), np.bool_)
    chosen[rows] = True
    sampling = chosen[record.samples]
    smaller = replace(
        record,
        handles=record.handles[rows],
        query_lengths=record.query_lengths[rows],
        starts=record.starts[rows],
        samples=record.samples[rows],
        token_ids=record.token_ids[np.repeat(chosen, record.query_lengths)],
        fingerprints=record.fingerprints[sampling] if len(record.fingerprints) else record.fingerprints,
        sampled=record.sampled[sampling] if len(record.sampled) else record.sampled,
    )
    handles = set(smaller.handles.tolist())
    return replace(
        replay,
        record=smaller,
        block_tables=[replay.block_tables[row] for row in rows.tolist()],
        starts={handle: start for handle, start in replay.starts.items() if handle in handles},
        outputs={handle: tokens for handle, tokens in replay.outputs.items() if handle in handles},
    )
