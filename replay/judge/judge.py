"""The judge: exact tests in a fixed order, then a verdict or an abstention (design rule 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from checkengine.guards.finding import Finding
from checkengine.replay.executor import Executor
from checkengine.replay.judge.calls import Beyond, CallsOutcome, try_calls
from checkengine.replay.judge.case import Case
from checkengine.replay.judge.conviction import fed_wrong, in_company, misplaced, overwritten, uneven
from checkengine.replay.judge.everybody import Everybody, narrowed, try_everybody
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.fills import Difference, try_fills
from checkengine.replay.judge.gate import Gate, bound_words
from checkengine.replay.judge.inputs import try_inputs
from checkengine.replay.judge.intervals import clopper_pearson
from checkengine.replay.judge.invariance import try_neighbours, try_placement
from checkengine.replay.judge.kept import WindowAt, try_kept
from checkengine.replay.judge.layout import refuse_layout
from checkengine.replay.judge.nonfinite import first_nonfinite_step
from checkengine.replay.judge.reference import ReferenceOutcome, compare_reference, try_reference
from checkengine.replay.judge.repeat import Repeats, repeat, run_first
from checkengine.replay.judge.rules_out import ruled
from checkengine.replay.judge.shape import try_shape
from checkengine.replay.judge.stop import find_passed_stop, no_passed_stop
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import TestResult, Verdict, VerdictKind
from checkengine.replay.playback import all_bits
from checkengine.replay.refire import GuardsFactory
from checkengine.replay.replayer import Replay
from checkengine.replay.window import Window

OF_STOPS = ("stop.ignored", "tool_call.loop", "tool_call.runaway", "tool_call.malformed")
"""Findings that a passed-over end token explains."""


@dataclass(slots=True)
class Judge:
    """Judges one window. `guards` makes fresh guards; without it the reference test looks at tokens only.

    `changed`: what decides numbers and is not as recorded (Executor.changed); without that a record whose bits do not
    come again proves nothing. `gate`: repeats a convicting step in fresh processes; without it only `repeats` runs in
    this process stand behind a conviction, and the verdict says so. `known`: tests that were made before. `window_at`:
    the suspect's window of one step alone; without it memory that changed cannot be told from a step that went wrong.
    `everybody`: the window with all rows as they were; without it what came once is not told from what rows do to
    each other, and nothing is called transient.
    """

    executor: Executor
    guards: GuardsFactory | None = None
    repeats: int = 2
    changed: Sequence[str] = ()
    gate: Gate | None = None
    known: Sequence[TestResult] = ()
    window_at: WindowAt | None = None
    everybody: Everybody | None = None

    def judge(
        self,
        window: Window,
        finding: Finding | None = None,
        replay: Replay | None = None,
        reference: Replay | None = None,
        reference_fires: bool | None = None,
    ) -> Verdict:
        """`replay`: the forced replay of the record; `reference`: the reference kernel's replay on its own tokens.
        Where they ran on this very window they are not run again. CannotReplayError where the window's memory has a
        layout that cannot be judged."""
        refuse_layout(window.image)
        case = Case(Bench(self.executor, window), finding, replay, reference, reference_fires)
        case.add(*self.known)
        verdict = self._judge(case, window)
        return verdict if self.gate is None else self._gated(case, window, verdict, self.gate)

    def _judge(self, case: Case, window: Window) -> Verdict:
        replay = case.replay
        repeats = run_first(case.bench, replay.outputs if replay is not None and replay.ran_hashed(window) else None)
        bad = first_nonfinite_step(window, repeats.outputs)
        memory = None
        if bad is None and self.repeats == 2 and replay is not None and replay.bit_exact and replay.ran_hashed(window):
            repeats.times, repeats.as_recorded = 2, True
        else:
            memory = repeat(case.bench, repeats, max(2, self.repeats), bad)
        case.add(repeats.result())
        if repeats.first_difference:
            return nondeterministic(case, repeats)
        if replay is not None:
            case.add(record_result(replay))
        if bad is not None:
            return case.nonfinite_step(repeats, bad, memory)
        case.add(TestResult("finite", True, "every op and every logit of the involved rows is finite"))
        return self._finite(case, repeats)

    def _finite(self, case: Case, repeats: Repeats) -> Verdict:
        passed = find_passed_stop(case.bench.window, repeats)
        if passed and case.finding is not None and case.finding.kind in OF_STOPS:
            return case.passed_stop(passed)  # Told by tokens alone: fills could add nothing.
        fills = try_fills(case.bench, repeats.bits)
        found = fills.finite or fills.nan
        if found and not repeats_under_fill(case.bench, found):
            sentence = f"step {found.step.number} gives other bits from run to run on the same refilled memory"
            return case.verdict(VerdictKind.NONDETERMINISM, sentence, FaultClass.NONDETERMINISM, step=found.step)
        case.add(*fills.results())
        if fills.finite:
            return case.over_read(fills.finite)
        if passed:
            return case.passed_stop(passed)
        case.add(no_passed_stop(case.bench.window.starts))
        calls = try_calls(case.bench)
        if calls is not None:
            case.add(calls.result())
            if calls.beyond is not None:
                return self._beyond(case, calls.beyond, repeats)
        if fills.nan:
            return case.nan_unsafe(fills.nan)
        if (verdict := self._invariant(case, repeats)) is not None:
            return verdict
        if case.finding is None:
            return case.verdict(VerdictKind.NO_FAULT, "repeats bit for bit and reads only memory that it owns")
        return self._habit(case, repeats, calls)

    def _beyond(self, case: Case, found: Beyond, repeats: Repeats) -> Verdict:
        """Where it reads a stand-in's memory, the rows as they were tell whose that is and where."""
        whole = case.bench.window
        verdict = case.beyond(found, repeats)
        stands_in = any(place.block in whole.scratch for place in verdict.slots)
        window = self.everybody() if stands_in and self.everybody is not None else None
        again = in_company(case, narrowed(window, whole)) if window is not None else verdict
        return again if again.slots else verdict

    def _invariant(self, case: Case, repeats: Repeats) -> Verdict | None:
        """What else is exact at equal shape."""
        inputs = try_inputs(case.bench)
        if inputs is not None:
            case.add(inputs.result())
            if inputs.wrong is not None:
                return fed_wrong(case, inputs.wrong, repeats)
        test, found = try_neighbours(case.bench, repeats)
        case.add(test)
        if found:
            return uneven(case, found, repeats)
        test, found = try_placement(case.bench, repeats)
        case.add(test)
        return misplaced(case, found, repeats) if found else None

    def _habit(self, case: Case, repeats: Repeats, calls: CallsOutcome | None) -> Verdict:
        reference = self._reference(case, repeats)
        case.add(reference.result())
        if case.replay is not None and case.replay.first_difference is not None:
            if self.changed:
                return case.not_as_recorded(case.replay, self.changed)
            return self._unlike(case, case.replay)
        shape = try_shape(case.bench, repeats.outputs)
        if shape is not None:
            case.add(shape.result())
            if shape.step is not None and calls is not None and calls.numerics:
                sentence = (
                    f"the batch's shape decides the token of step {shape.step.number} (recorded margin "
                    f"{shape.margin:.3g}): alone the sequence takes another, and every attention call lies within "
                    "what rounding does"
                )
                return case.verdict(VerdictKind.BATCH_NUMERICS, sentence, step=shape.step, row=shape.row)
        return case.verdict(VerdictKind.INCONCLUSIVE, habit(reference))

    def _unlike(self, case: Case, replay: Replay) -> Verdict:
        """On equal ground the record's bits do not come again, and no other test says why."""
        company = try_everybody(case.bench, replay, self.everybody)
        case.add(company.result())
        if company.again and company.window is not None:
            return in_company(case, company.window)
        kept = try_kept(case.bench, replay, self.window_at)
        if kept is not None:
            case.add(kept.result())
            # Where no step goes wrong by itself company does not matter.
            if kept.overwritten and (not kept.unlike or company.again is False):
                return overwritten(case, kept)
        return case.not_as_recorded(replay, self.changed, company)

    def _reference(self, case: Case, repeats: Repeats) -> ReferenceOutcome:
        made, window = case.reference, case.bench.window
        if made is None or len(made.outputs) != len(window.steps) or made.from_step != window.steps[0].number:
            return try_reference(case.bench, repeats, case.finding, self.guards)
        return compare_reference(window, repeats, made.outputs, made.kernel, case.reference_fires)

    def _gated(self, case: Case, window: Window, verdict: Verdict, gate: Gate) -> Verdict:
        """The verdict once its step has repeated in fresh processes; another one where it does not."""
        shown = case.convicting
        if shown is None:
            return verdict
        if not any(step is shown.step for step in window.steps):
            window = case.bench.window  # It was convicted among all rows as they were.
        outcome = gate.check(window, shown.step, shown.fill, shown.bits)
        case.add(outcome.result())
        if outcome.repeats is not False:
            return replace(verdict, tests=tuple(case.tests))
        low, high = clopper_pearson(outcome.different, outcome.runs)
        sentence = (
            f"step {shown.step.number} repeats in this process and not in fresh ones: {outcome.different} of "
            f"{outcome.runs} runs differ, first {outcome.what}; {bound_words(low, high)}"
        )
        return case.verdict(VerdictKind.NONDETERMINISM, sentence, FaultClass.NONDETERMINISM, step=shown.step)


def nondeterministic(case: Case, repeats: Repeats) -> Verdict:
    step, what = repeats.first_difference or (None, "")
    low, high = clopper_pearson(repeats.different, repeats.counted)
    number = step.number if step else -1
    sentence = (
        f"the same step on the same memory gives other bits from run to run: {what}, step {number}; "
        f"{bound_words(low, high)}"
    )
    row, layer = repeats.where
    layers = () if layer is None else (layer,)
    position = None
    if step is not None and row is not None and repeats.token is not None:
        position = int(step.replay.record.starts[row]) + repeats.token
    return case.verdict(
        VerdictKind.NONDETERMINISM,
        sentence,
        FaultClass.NONDETERMINISM,
        step=step,
        row=row,
        layers=layers,
        op=repeats.op,
        heads=repeats.heads,
        position=position,
    )


def repeats_under_fill(bench: Bench, found: Difference) -> bool:
    """The step that told fills apart, once more on the same refilled memory."""
    return all_bits(found.step, bench.run_again(found.step, found.memory)) == found.quiet


def record_result(replay: Replay) -> TestResult:
    numbers = {"rows": replay.rows, "equal_rows": replay.equal_rows, "steps": replay.steps}
    return TestResult("record", replay.first_difference is None, replay.words(), numbers)


def habit(reference: ReferenceOutcome) -> str:
    if reference.first_token is None:
        return "the model itself (habit) or its weights: nothing in memory or kernels differs"
    step, _, margin = reference.first_token
    return (
        f"the reference kernel takes another token at step {step.number} (recorded margin {margin:.3g}); "
        "only a tolerance could tell rounding from a fault here"
    )


def weights_changed(error: Exception) -> Verdict:
    """The verdict where the weights that are here are not those of the record."""
    test = TestResult("weights", False, str(error))
    return Verdict(VerdictKind.WEIGHTS_CHANGED, f"{error}", (ruled(test),), fault_class=FaultClass.WEIGHTS)
