"""Does a step still show the fault? By the test that told it, twice alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checkengine.replay.executor import Executor, StepOutput
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.fills import FINITE_FILLS, NAN_FILL, layer_bits
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.nonfinite import HEAD, first_nonfinite, same_op
from checkengine.replay.judge.verdict import Verdict
from checkengine.replay.minimise.budget import Budget
from checkengine.replay.minimise.op_tests import beyond_bound, wrong_reads
from checkengine.replay.minimise.step_case import StepCase
from checkengine.replay.minimise.symptom import Shown
from checkengine.replay.op_call import takes_calls
from checkengine.replay.playback import Bits, Playback

BY_READS: tuple[Shown, ...] = (Shown.FINITE_FILL, Shown.NAN_FILL, Shown.NOT_FINITE, Shown.BEYOND_BOUND, Shown.JUDGED)
BY_NUMBERS = (Shown.NOT_FINITE, Shown.BEYOND_BOUND, Shown.FINITE_FILL, Shown.NAN_FILL, Shown.JUDGED)
WHOLE_STEP = (FaultClass.POSITION, FaultClass.WRITE, FaultClass.STOP)
"""Classes that no single attention call shows."""


class StepOracle:
    """Runs one step on one memory: a step writes its own slots before it reads them, so it may run again and again."""

    def __init__(self, executor: Executor, case: StepCase, verdict: Verdict, budget: Budget) -> None:
        self.executor, self.case, self.verdict, self.budget = executor, case, verdict, budget
        playback = Playback(executor, case.window, fill=FINITE_FILLS[0], hashes=True)
        playback.prepare(case.step)
        self.memory: Any = playback.memory
        self.guilty = case.slots if len(case.slots) else case.window.unowned(case.step)
        self.shown: Shown | None = None
        self._tests: Mapping[Shown, Callable[[StepCase], bool]] = {
            Shown.FINITE_FILL: self._finite_fill,
            Shown.NAN_FILL: self._nan_fill,
            Shown.NOT_FINITE: self._not_finite,
            Shown.BEYOND_BOUND: self._beyond_bound,
            Shown.JUDGED: self._judged,
        }

    def see(self) -> Shown | None:
        """How the step shows a fault, if it does; `accept` asks for the same from then on."""
        order = BY_READS if len(self.case.slots) else BY_NUMBERS
        if self.verdict.fault_class in WHOLE_STEP:
            order = (Shown.JUDGED,)
        self.shown = next((shown for shown in order if self._tests[shown](self.case)), None)
        return self.shown

    def accept(self, case: StepCase) -> bool:
        return self.shown is not None and self._tests[self.shown](case)

    def _finite_fill(self, case: StepCase) -> bool:
        quiet, filled = self._bits(case, FINITE_FILLS[0]), self._bits(case, FINITE_FILLS[1])
        return quiet != filled and self._bits(case, FINITE_FILLS[1]) == filled

    def _nan_fill(self, case: StepCase) -> bool:
        quiet = self._bits(case, FINITE_FILLS[0])
        if self._bits(case, FINITE_FILLS[1]) != quiet:
            return False
        filled = self._bits(case, NAN_FILL)
        return filled != quiet and self._bits(case, NAN_FILL) == filled

    def _not_finite(self, case: StepCase) -> bool:
        output = self._run(case)
        found = first_nonfinite(case.step, output)
        if found is None or found[0] != case.row:
            return False
        row, op, layer = found
        twin = self._run(case, self.executor.reference)
        if same_op(twin, row, op, layer) or (layer == HEAD and first_nonfinite(case.step, twin)):
            return False
        again = self._run(case)
        return layer_bits(case.step, again, row) == layer_bits(case.step, output, row)

    def _beyond_bound(self, case: StepCase) -> bool:
        """An attention output of the row, as it was in the step; or the reads of its call."""
        if not takes_calls(self.executor):
            return False
        executor = self.executor
        self.budget.take()
        calls = executor.calls(case.step.replay, self.memory, rows=[case.row], layers=case.layers or None)
        if any(beyond_bound(call, output) for call, output in calls):
            return True

        def attend(call: Any) -> Any:
            self.budget.take()
            return executor.attend(call)

        return any(wrong_reads(attend, call) is not None for call, _ in calls)

    def _judged(self, case: StepCase) -> bool:
        verdict = Judge(self.executor).judge(case.window)
        for _ in range(max(1, verdict.replays_used)):
            self.budget.take()
        same = (verdict.kind, verdict.fault_class, verdict.op) == self._told
        return same and verdict.sequence == self.verdict.sequence

    @property
    def _told(self) -> tuple[Any, ...]:
        return self.verdict.kind, self.verdict.fault_class, self.verdict.op

    def _bits(self, case: StepCase, pattern: float) -> Bits:
        self.executor.write_slots(self.memory, self.guilty, pattern)
        bits = layer_bits(case.step, self._run(case), case.row)
        self.executor.write_slots(self.memory, self.guilty, FINITE_FILLS[0])
        return bits

    def _run(self, case: StepCase, kernel: str | None = None) -> StepOutput:
        self.budget.take()
        return self.executor.run(case.step.replay, self.memory, kernel=kernel, hashes=True)
