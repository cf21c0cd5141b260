"""One judgement in the making: the tests so far, and the sentences of its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from checkengine.guards.finding import Finding
from checkengine.replay.judge.calls import Beyond
from checkengine.replay.judge.everybody import EverybodyOutcome
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.fills import FINITE_FILLS, Difference, try_fills
from checkengine.replay.judge.invariance import try_neighbours
from checkengine.replay.judge.nonfinite import CONSTANT, HEAD, Nonfinite, first_nonfinite, judge_nonfinite
from checkengine.replay.judge.repeat import Repeats
from checkengine.replay.judge.rules_out import ruled
from checkengine.replay.judge.stop import PassedStop
from checkengine.replay.judge.trial import Bench
from checkengine.replay.judge.verdict import SlotPlace, TestResult, Verdict, VerdictKind
from checkengine.replay.localise import CallSearch, Localised, localise, localise_write
from checkengine.replay.op_call import takes_calls
from checkengine.replay.playback import Bits
from checkengine.replay.replayer import Replay
from checkengine.replay.window import WindowStep

ATTENTION = "attention"
NEIGHBOURHOODS = 3
"""Sets of other neighbours that are tried to explain wrong arithmetic."""


@dataclass(slots=True)
class Convicting:
    """The step that shows the fault, for the determinism gate."""

    step: WindowStep
    fill: float | None
    bits: Bits


@dataclass(slots=True)
class Case:
    bench: Bench
    finding: Finding | None
    replay: Replay | None
    reference: Replay | None
    reference_fires: bool | None
    tests: list[TestResult] = field(default_factory=list)
    convicting: Convicting | None = None

    def add(self, *tests: TestResult) -> None:
        self.tests += [ruled(test) for test in tests]

    def verdict(
        self,
        kind: VerdictKind,
        sentence: str,
        fault_class: FaultClass | None = None,
        *,
        step: WindowStep | None = None,
        row: int | None = None,
        layers: tuple[int, ...] = (),
        slots: tuple[SlotPlace, ...] = (),
        op: str | None = None,
        heads: tuple[int, ...] = (),
        position: int | None = None,
        parts: tuple[str, ...] = (),
    ) -> Verdict:
        sequence = self.finding.sequence if self.finding else None
        if step is not None and row is not None:
            sequence = self.bench.window.name_of(step, row)
        return Verdict(
            kind,
            sentence,
            tuple(self.tests),
            layers,
            slots,
            sequence,
            None if step is None else step.number,
            self.bench.replays,
            fault_class,
            op,
            heads,
            position,
            parts,
        )

    def over_read(self, found: Difference) -> Verdict:
        self.convicting = Convicting(found.step, found.fills[0], found.quiet)
        where = self._localise(found)
        kernel = kernel_of(where.step)
        if where.fault_class is FaultClass.WRITE:
            sentence = (
                f"the sequence's own slots are read before anything is written there: {places(where)}, "
                f"in {named(where.layers)}"
            )
        else:
            place = f"{places(where)}, in {named(where.layers)}{more(where)}"
            sentence = f"the {kernel} kernel reads memory it does not own: {place}"
        return self.placed(VerdictKind.CODE_DEFECT, sentence, where, where.fault_class or FaultClass.OVER_READ)

    def nan_unsafe(self, found: Difference) -> Verdict:
        self.convicting = Convicting(found.step, found.fills[0], found.quiet)
        where = self._localise(found)
        sentence = (
            f"the {kernel_of(found.step)} kernel multiplies memory it does not own by zero, which NaN survives: "
            f"{places(where)}, in {named(where.layers)}; finite contents change no bit"
        )
        return self.placed(VerdictKind.NAN_UNSAFE, sentence, where, FaultClass.MASKED_READ)

    def placed(self, kind: VerdictKind, sentence: str, where: Localised, fault_class: FaultClass) -> Verdict:
        return self.verdict(
            kind,
            sentence,
            fault_class,
            step=where.step,
            row=where.row,
            layers=where.layers,
            slots=where.slots,
            op=ATTENTION if where.layers else None,
            heads=where.heads,
            position=where.position,
            parts=where.parts,
        )

    def beyond(self, found: Beyond, repeats: Repeats) -> Verdict:
        """A call whose output rounding does not explain."""
        executor = self.bench.executor
        assert takes_calls(executor)
        index = next(i for i, step in enumerate(self.bench.window.steps) if step is found.step)
        self.convicting = Convicting(found.step, None, repeats.bits[index])
        search = CallSearch(executor, self.bench.window, found.step, found.row, FINITE_FILLS)
        fault = search.explain(found.call, found.output, found.memory)
        if fault.fault_class is FaultClass.ARITHMETIC and not fault.alone and self._neighbours_matter(repeats):
            fault.fault_class, fault.words = FaultClass.ROWS, "and it depends on what other rows hold"
        where = search.localised([fault])
        self.add(localise_result(where, 0))
        what = {
            FaultClass.ARITHMETIC: fault.words or "no factor explains it",
            FaultClass.SCALE: fault.words,
            FaultClass.ROWS: fault.words,
        }.get(fault.fault_class, f"{fault.words}, first {places(where)}")
        sentence = (
            f"the {found.call.kernel} kernel computes attention wrong in layer {found.call.layer}, step "
            f"{found.step.number}: {found.ratio:.3g} times beyond what rounding can do; {what}"
        )
        return self.placed(VerdictKind.CODE_DEFECT, sentence, where, fault.fault_class)

    def _neighbours_matter(self, repeats: Repeats) -> bool:
        for seed in range(NEIGHBOURHOODS):
            test, found = try_neighbours(self.bench, repeats, seed)
            if found or test.passed is None:
                break
        self.add(test)
        return bool(found)

    def nonfinite_step(self, repeats: Repeats, index: int, memory: Any) -> Verdict:
        """Only the step in which a number first stops being finite is refilled: it is the one to explain."""
        bench = self.bench.at(self.bench.window.steps[index], memory)
        whole, self.bench = self.bench, bench
        bench.replays = whole.replays
        fills = try_fills(bench, [repeats.bits[index]])
        self.add(*fills.results())
        found = judge_nonfinite(bench, whole.window, repeats.outputs[index])
        self.add(found.result())
        if fills.finite:
            return self.over_read(fills.finite)
        if fills.nan and is_cured(bench):
            return self.nan_unsafe(fills.nan)
        self.convicting = Convicting(found.step, None, repeats.bits[index])
        return self.nonfinite(found)

    def nonfinite(self, found: Nonfinite) -> Verdict:
        where = "the head (logits)" if found.layer == HEAD else f"{found.op} of layer {found.layer}"
        what = "NaN or infinity" if found.op != CONSTANT else "one constant, as is left of NaN that was cleaned away,"
        kind, layers = VerdictKind.INCONCLUSIVE, () if found.layer == HEAD else (found.layer,)
        fault_class = FaultClass.NON_FINITE
        sentence = f"{where} gives {what} under the reference kernel too: weights or inputs, not this kernel"
        if len(found.stale):
            kind, fault_class = VerdictKind.STALE_KV, FaultClass.STALE_KV
            sentence = (
                f"{len(found.stale)} slots of the sequence held NaN or infinity before the window's first step "
                f"(first: slot {int(found.stale[0]):,}); what wrote them came earlier"
            )
        elif found.reference_finite:
            kind = VerdictKind.CODE_DEFECT
            sentence = (
                f"{where} turns finite inputs into {what} under the {kernel_of(found.step)} kernel "
                f"at step {found.step.number}; the reference kernel gives finite, unlike numbers on the same memory"
            )
        return self.verdict(kind, sentence, fault_class, step=found.step, row=found.row, layers=layers, op=found.op)

    def passed_stop(self, passed: PassedStop) -> Verdict:
        self.add(passed.result())
        how = "was masked out of sampling" if passed.masked else "was sampled and did not end the sequence"
        return self.verdict(
            VerdictKind.CODE_DEFECT,
            f"the stop path: end token {passed.token} {how} at output token {passed.index}; the numerics are in order",
            FaultClass.STOP,
            step=passed.step,
            row=passed.row,
        )

    def not_as_recorded(
        self, replay: Replay, changed: Sequence[str], company: EverybodyOutcome | None = None
    ) -> Verdict:
        difference = replay.first_difference
        where = f"step {difference.step}, sequence {difference.sequence}" if difference else "no step"
        sentence = f"the record's bits do not come again ({where}), while replays repeat: "
        if changed:
            sentence += f"{len(changed)} things that decide numbers are not as recorded, first: {changed[0]}"
        elif replay.exact_from != "undo":
            sentence += "the recorded memory is not known byte for byte"
        elif company is None or company.again is None:
            sentence += (
                "same bytes, same code, equal machine; but not all rows that ran beside it could be run as they were: "
                "it came once, or depends on them"
            )
        else:
            sentence += "same bytes, same code, equal machine, all rows as they were"
            return self.verdict(VerdictKind.TRANSIENT, sentence, FaultClass.TRANSIENT)
        return self.verdict(VerdictKind.INCONCLUSIVE, sentence)

    def _localise(self, found: Difference) -> Localised:
        before = self.bench.replays
        where = self._by_calls(found) or localise_write(self.bench, found) or localise(self.bench, found)
        self.add(localise_result(where, self.bench.replays - before))
        return where

    def _by_calls(self, found: Difference) -> Localised | None:
        executor = self.bench.executor
        if not takes_calls(executor):
            return None
        self.bench.replays += 1
        search = CallSearch(executor, self.bench.window, found.step, found.row, found.fills)
        return search.localise(found.memory)


def is_cured(bench: Bench) -> bool:
    """Is the bench's only step finite once the memory that nobody owns is?"""
    (step,) = bench.window.steps
    return first_nonfinite(step, bench.playback(fill=FINITE_FILLS[0]).run(step)) is None


def localise_result(where: Localised, replays: int) -> TestResult:
    numbers = {
        "step": where.step.number,
        "layers": len(where.layers),
        "slots": len(where.slots),
        "replays": replays,
        "calls": where.attends,
    }
    detail = f"step {where.step.number}: {count(where.layers, 'layer')}, {count(where.slots, 'slot')}"
    detail += f", heads {', '.join(map(str, where.heads))}" if where.heads else ""
    detail += "" if where.position is None else f", first at position {where.position:,}"
    detail += f", read: {' and '.join(where.parts)}" if where.parts else ""
    return TestResult("localise", None, detail if where.complete else f"{detail}, not complete", numbers)


def kernel_of(step: WindowStep) -> str:
    return step.replay.record.kernel


def named(layers: tuple[int, ...]) -> str:
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


def more(where: Localised) -> str:
    """The kind of a read that is more than one too many."""
    if where.fault_class in (None, FaultClass.OVER_READ):
        return ""
    return f": {where.fault_class} ({where.words})" if where.words else f": {where.fault_class}"
