"""The judge: exact tests in a fixed order, then a verdict or an abstention (design rule 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from checkengine.guards.finding import Finding
from checkengine.replay.executor import Executor
from checkengine.replay.judge.fills import FINITE_FILLS, Difference, try_fills
from checkengine.replay.judge.nonfinite import HEAD, Nonfinite, first_nonfinite, first_nonfinite_step, judge_nonfinite
from checkengine.replay.judge.reference import ReferenceOutcome, compare_reference, try_reference
from checkengine.replay.judge.repeat import Repeats, repeat, run_first
from checkengine.replay.judge.stop import PassedStop, find_passed_stop, no_passed_stop
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import SlotPlace, TestResult, Verdict, VerdictKind
from checkengine.replay.localise import Localised, localise
from checkengine.replay.playback import all_bits
from checkengine.replay.refire import GuardsFactory
from checkengine.replay.replayer import Replay
from checkengine.replay.window import Window, WindowStep

OF_STOPS = ("stop.ignored", "tool_call.loop", "tool_call.runaway", "tool_call.malformed")
"""Findings that a passed-over end token explains."""


@dataclass(slots=True)
class Judge:
    """Judges one window. `guards` makes fresh guards; without it the reference test looks at tokens only.

    `changed`: what decides numbers and is not as recorded (Executor.changed); without that a record whose bits do not
    come again proves nothing.
    """

    executor: Executor
    guards: GuardsFactory | None = None
    repeats: int = 2
    changed: Sequence[str] = ()

    def judge(
        self,
        window: Window,
        finding: Finding | None = None,
        replay: Replay | None = None,
        reference: Replay | None = None,
        reference_fires: bool | None = None,
    ) -> Verdict:
        """`replay`: the forced replay of the record; `reference`: the reference kernel's replay on its own tokens.
        Where they ran on this very window they are not run again."""
        case = _Case(Bench(self.executor, window), finding, replay, reference, reference_fires)
        repeats = run_first(case.bench, replay.outputs if replay is not None and replay.ran_hashed(window) else None)
        bad = first_nonfinite_step(window, repeats.outputs)
        memory = None
        if bad is None and self.repeats == 2 and replay is not None and replay.bit_exact and replay.ran_hashed(window):
            repeats.times, repeats.as_recorded = 2, True
        else:
            memory = repeat(case.bench, repeats, max(2, self.repeats), bad)
        case.tests.append(repeats.result())
        if repeats.first_difference:
            return case.verdict(VerdictKind.NONDETERMINISM, nondeterminism(repeats), step=repeats.first_difference[0])
        if replay is not None:
            case.tests.append(record_result(replay))
        if bad is not None:
            return case.nonfinite_step(repeats, bad, memory)
        case.tests.append(TestResult("finite", True, "every op and every logit of the involved rows is finite"))
        return self._finite(case, repeats)

    def _finite(self, case: _Case, repeats: Repeats) -> Verdict:
        passed = find_passed_stop(case.bench.window, repeats)
        if passed and case.finding is not None and case.finding.kind in OF_STOPS:
            return case.passed_stop(passed)  # Told by tokens alone: fills could add nothing.
        fills = try_fills(case.bench, repeats.bits)
        found = fills.finite or fills.nan
        if found and not repeats_under_fill(case.bench, found):
            sentence = f"step {found.step.number} gives other bits from run to run on the same refilled memory"
            return case.verdict(VerdictKind.NONDETERMINISM, sentence, step=found.step)
        case.tests += fills.results()
        if fills.finite:
            return case.over_read(fills.finite)
        if passed:
            return case.passed_stop(passed)
        case.tests.append(no_passed_stop(case.bench.window.starts))
        if fills.nan:
            return case.nan_unsafe(fills.nan)
        if case.finding is None:
            return case.verdict(VerdictKind.NO_FAULT, "repeats bit for bit and reads only memory that it owns")
        return self._habit(case, repeats)

    def _habit(self, case: _Case, repeats: Repeats) -> Verdict:
        reference = self._reference(case, repeats)
        case.tests.append(reference.result())
        if case.replay is not None and case.replay.first_difference is not None:
            return case.not_as_recorded(case.replay, self.changed)
        return case.verdict(VerdictKind.INCONCLUSIVE, habit(reference))

    def _reference(self, case: _Case, repeats: Repeats) -> ReferenceOutcome:
        made, window = case.reference, case.bench.window
        if made is None or len(made.outputs) != len(window.steps) or made.from_step != window.steps[0].number:
            return try_reference(case.bench, repeats, case.finding, self.guards)
        return compare_reference(window, repeats, made.outputs, made.kernel, case.reference_fires)


@dataclass(slots=True)
class _Case:
    """The tests so far, and the sentences."""

    bench: Bench
    finding: Finding | None
    replay: Replay | None
    reference: Replay | None
    reference_fires: bool | None
    tests: list[TestResult] = field(default_factory=list)

    def verdict(
        self,
        kind: VerdictKind,
        sentence: str,
        *,
        step: WindowStep | None = None,
        row: int | None = None,
        layers: tuple[int, ...] = (),
        slots: tuple[SlotPlace, ...] = (),
    ) -> Verdict:
        sequence = self.finding.sequence if self.finding else None
        if step is not None and row is not None:
            sequence = self.bench.window.name_of(step, row)
        number = None if step is None else step.number
        return Verdict(kind, sentence, tuple(self.tests), layers, slots, sequence, number, self.bench.replays)

    def over_read(self, found: Difference) -> Verdict:
        where = self._localise(found)
        return self.verdict(
            VerdictKind.CODE_DEFECT,
            f"the {self._kernel(found.step)} kernel reads memory it does not own: {places(where)}, in {named(where)}",
            step=where.step,
            row=where.row,
            layers=where.layers,
            slots=where.slots,
        )

    def nan_unsafe(self, found: Difference) -> Verdict:
        where = self._localise(found)
        return self.verdict(
            VerdictKind.NAN_UNSAFE,
            f"the {self._kernel(found.step)} kernel multiplies memory it does not own by zero, which NaN survives: "
            f"{places(where)}, in {named(where)}; finite contents change no bit",
            step=where.step,
            row=where.row,
            layers=where.layers,
            slots=where.slots,
        )

    def nonfinite_step(self, repeats: Repeats, index: int, memory: Any) -> Verdict:
        """Only the step in which a number first stops being finite is refilled: it is the one to explain."""
        bench = self.bench.at(self.bench.window.steps[index], memory)
        whole, self.bench = self.bench, bench
        bench.replays = whole.replays
        fills = try_fills(bench, [repeats.bits[index]])
        self.tests += fills.results()
        found = judge_nonfinite(bench, whole.window, repeats.outputs[index])
        self.tests.append(found.result())
        if fills.finite:
            return self.over_read(fills.finite)
        if fills.nan and is_cured(bench):
            return self.nan_unsafe(fills.nan)
        return self.nonfinite(found)

    def nonfinite(self, found: Nonfinite) -> Verdict:
        where = "the head (logits)" if found.layer == HEAD else f"{found.op} of layer {found.layer}"
        kind, layers = VerdictKind.INCONCLUSIVE, () if found.layer == HEAD else (found.layer,)
        sentence = f"{where} gives NaN or infinity under the reference kernel too: weights or inputs, not this kernel"
        if len(found.stale):
            kind = VerdictKind.STALE_KV
            sentence = (
                f"{len(found.stale)} slots of the sequence held NaN or infinity before the window's first step "
                f"(first: slot {int(found.stale[0]):,}); what wrote them came earlier"
            )
        elif found.reference_finite:
            kind = VerdictKind.CODE_DEFECT
            kernel = self._kernel(found.step)
            sentence = (
                f"{where} turns finite inputs into NaN or infinity under the {kernel} kernel "
                f"at step {found.step.number}; the reference kernel stays finite on the same memory"
            )
        return self.verdict(kind, sentence, step=found.step, row=found.row, layers=layers)

    def passed_stop(self, passed: PassedStop) -> Verdict:
        self.tests.append(passed.result())
        how = "was masked out of sampling" if passed.masked else "was sampled and did not end the sequence"
        return self.verdict(
            VerdictKind.CODE_DEFECT,
            f"the stop path: end token {passed.token} {how} at output token {passed.index}; the numerics are in order",
            step=passed.step,
            row=passed.row,
        )

    def not_as_recorded(self, replay: Replay, changed: Sequence[str]) -> Verdict:
        difference = replay.first_difference
        where = f"step {difference.step}, sequence {difference.sequence}" if difference else "no step"
        sentence = f"the record's bits do not come again ({where}), while replays repeat: "
        if changed:
            sentence += f"{len(changed)} things that decide numbers are not as recorded, first: {changed[0]}"
        elif replay.exact_from != "undo":
            sentence += "the recorded memory is not known byte for byte"
        else:
            sentence += "same bytes, same code, equal machine"
            return self.verdict(VerdictKind.TRANSIENT, sentence)
        return self.verdict(VerdictKind.INCONCLUSIVE, sentence)

    def _localise(self, found: Difference) -> Localised:
        before = self.bench.replays
        where = localise(self.bench, found)
        numbers = {
            "step": where.step.number,
            "layers": len(where.layers),
            "slots": len(where.slots),
            "replays": self.bench.replays - before,
        }
        detail = f"step {where.step.number}: {count(where.layers, 'layer')}, {count(where.slots, 'slot')}"
        detail += "" if where.complete else ", not complete"
        self.tests.append(TestResult("localise", None, detail, numbers))
        return where

    def _kernel(self, step: WindowStep) -> str:
        return step.replay.record.kernel


def repeats_under_fill(bench: Bench, found: Difference) -> bool:
    """The step that told fills apart, once more on the same refilled memory."""
    return all_bits(found.step, bench.run_again(found.step, found.memory)) == found.quiet


def is_cured(bench: Bench) -> bool:
    """Is the bench's only step finite once the memory that nobody owns is?"""
    (step,) = bench.window.steps
    return first_nonfinite(step, bench.playback(fill=FINITE_FILLS[0]).run(step)) is None


def nondeterminism(repeats: Repeats) -> str:
    step, what = repeats.first_difference or (None, "")
    number = step.number if step else -1
    return f"the same step on the same memory gives other bits from run to run: {what}, step {number}"


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


def named(where: Localised) -> str:
    layers = where.layers
    if not layers:
        return "a layer that could not be told"
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if layers == tuple(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layers {', '.join(map(str, layers))}"


def count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}" + ("" if len(things) == 1 else "s")


def places(where: Localised) -> str:
    if not where.slots:
        return "no single slot shows it by itself"
    first, rest = where.slots[0].words, len(where.slots) - 1
    return first if not rest else f"{first}, and {rest} more"


def weights_changed(error: Exception) -> Verdict:
    """The verdict where the weights that are here are not those of the record."""
    test = TestResult("weights", False, str(error))
    return Verdict(VerdictKind.WEIGHTS_CHANGED, f"{error}", (test,))
