"""Judge one op's call by itself: no model, no window, seconds at most."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.fills import FINITE_FILLS, NAN_FILL
from checkengine.replay.judge.verdict import SlotPlace, TestResult, Verdict, VerdictKind
from checkengine.replay.localise import find_all
from checkengine.replay.minimise.call_oracle import different, is_finite, reference_of
from checkengine.replay.minimise.op_tests import arithmetic_class, beyond_bound, wrong_reads
from checkengine.replay.minimise.symptom import Place, Relation
from checkengine.replay.op_call import OpCall, OpExecutor
from checkengine.replay.record import Ints

REPEATS = 20
MOST_SLOTS = 64
"""More guilty slots than this are not listed one by one."""


def judge_call(executor: OpExecutor, call: OpCall, *, repeats: int = REPEATS) -> Verdict:
    """The same exact tests as for a window: repeats, finite numbers, two finite fills, NaN. `repeats`: runs in this
    process that must be equal, bit for bit."""
    return _Case(executor, call).judge(repeats)


@dataclass(slots=True)
class _Case:
    executor: OpExecutor
    call: OpCall
    runs: int = 0
    tests: list[TestResult] = field(default_factory=list)

    def judge(self, repeats: int) -> Verdict:
        quiet = self.call.filled(self.call.hidden, FINITE_FILLS[0])
        expected = self.run(quiet)
        if any(different(expected, self.run(quiet)).any() for _ in range(max(repeats, 2) - 1)):
            self.test("repeat", False, f"{self.runs} runs of the same call give other bits")
            sentence = f"{self.named} gives other bits from run to run"
            return self.verdict(VerdictKind.NONDETERMINISM, sentence, fault_class=FaultClass.NONDETERMINISM)
        self.test("repeat", True, f"{self.runs} runs in one process are bit-equal")
        finite = self.run(quiet.filled(quiet.hidden, FINITE_FILLS[1]))
        if self.told(expected, finite, "fills", "another finite pattern"):
            return self.read(quiet, expected, FINITE_FILLS[1], VerdictKind.CODE_DEFECT)
        if not torch.isfinite(expected).all():
            return self.not_finite(quiet)
        self.test("finite", True, "the call's output is finite")
        if self.told(expected, self.run(quiet.filled(quiet.unowned, NAN_FILL)), "NaN fill", "NaN"):
            return self.read(quiet, expected, NAN_FILL, VerdictKind.NAN_UNSAFE)
        if len(self.call.behind):
            self.behind(quiet, expected)
        return self.numbers(quiet, expected)

    @property
    def named(self) -> str:
        return f"the {self.call.kernel} kernel"

    def run(self, call: OpCall, kernel: str | None = None) -> torch.Tensor:
        self.runs += 1
        return self.executor.attend(call, kernel=kernel)

    def test(self, name: str, passed: bool, detail: str) -> None:
        self.tests.append(TestResult(name, passed, detail))

    def told(self, expected: torch.Tensor, found: torch.Tensor, name: str, what: str) -> bool:
        changed = bool(different(expected, found).any())
        bits = "other bits" if changed else "the same bits"
        self.test(name, not changed, f"{bits} when slots that it may not read hold {what}")
        return changed

    def behind(self, quiet: OpCall, expected: torch.Tensor) -> None:
        """NaN in slots of its own that its window has left: nobody but the row itself puts it there, unless the engine
        gives pages behind a window to others. A masked read, and no defect."""
        changed = bool(different(expected, self.run(quiet.filled(quiet.behind, NAN_FILL))).any())
        how = f"{FaultClass.MASKED_READ}: NaN gets through" if changed else "the same bits under NaN"
        detail = f"{how} in the {len(quiet.behind)} slots of its own that lie behind its window"
        self.tests.append(TestResult("NaN behind the window", None if changed else True, detail))

    def read(self, quiet: OpCall, expected: torch.Tensor, pattern: float, kind: VerdictKind) -> Verdict:
        def changes(part: Ints) -> bool:
            return bool(different(expected, self.run(quiet.filled(part, pattern))).any())

        candidates = quiet.unowned if kind is VerdictKind.NAN_UNSAFE else quiet.hidden
        found, _ = find_all(candidates, changes, MOST_SLOTS)
        slots = tuple(self.place(int(slot)) for slot in found)
        where = slots[0].words if slots else "no single slot shows it by itself"
        where += f", and {len(slots) - 1} more" if len(slots) > 1 else ""
        how = "reads memory it does not own"
        if kind is VerdictKind.NAN_UNSAFE:
            how = "multiplies memory it does not own by zero, which NaN survives"
        heads = different(expected, self.run(quiet.filled(found if slots else candidates, pattern))).any(0)
        fault_class = FaultClass.MASKED_READ if kind is VerdictKind.NAN_UNSAFE else self.read_class(slots)
        guilty = tuple(np.flatnonzero(heads).tolist())
        return self.verdict(kind, f"{self.named} {how}: {where}", slots, guilty, fault_class)

    def place(self, slot: int) -> SlotPlace:
        size = self.call.block_size
        relation = Relation.of(self.call, slot)
        past = relation.place is Place.PAST_END
        words = f"slot {slot:,} = {relation.words}" if past else f"slot {slot:,}, {relation.words}"
        held = np.flatnonzero(self.call.table == slot // size)
        position = int(held[0]) * size + slot % size if len(held) else None
        return SlotPlace(slot, slot // size, position, f"{words} (length {self.call.length:,})")

    def numbers(self, quiet: OpCall, expected: torch.Tensor) -> Verdict:
        """What it reads of its own, and how far from float64 it lands."""
        told = wrong_reads(self.run, quiet)
        self.test("reads", told is None, "the slots read are " + ("those it may read" if told is None else "others"))
        if told is not None:
            reads, fault_class = told
            wrong = {"left out": reads.missing, "read twice": reads.repeated, "read besides": reads.extra}
            what = ", ".join(f"{len(slots)} slots {how}" for how, slots in wrong.items() if len(slots))
            sentence = f"{self.named} reads its own memory wrong: {what}"
            return self.verdict(VerdictKind.CODE_DEFECT, sentence, heads=reads.heads, fault_class=fault_class)
        beyond = beyond_bound(quiet, expected)
        self.test("bound", not beyond, f"{'beyond' if beyond else 'within'} the rounding bound around float64")
        if beyond:
            fault_class = arithmetic_class(quiet, expected)
            sentence = f"{self.named} lands further from float64 than rounding can bring it ({fault_class})"
            return self.verdict(VerdictKind.CODE_DEFECT, sentence, fault_class=fault_class)
        return self.verdict(
            VerdictKind.NO_FAULT, f"{self.named} repeats bit for bit, reads what it owns, and only rounds"
        )

    def not_finite(self, quiet: OpCall) -> Verdict:
        given, reference = is_finite(quiet), reference_of(self.executor)
        twin = bool(torch.isfinite(self.run(quiet, reference)).all())
        self.test("finite", False, f"NaN or infinity; {'finite' if twin else 'not finite either'} with {reference}")
        if given and twin:
            sentence = f"{self.named} turns finite inputs into NaN or infinity; {reference} stays finite on the same"
            return self.verdict(VerdictKind.CODE_DEFECT, sentence, fault_class=FaultClass.NON_FINITE)
        return self.verdict(VerdictKind.INCONCLUSIVE, "what is not finite was given, or the reference gives it too")

    def verdict(
        self,
        kind: VerdictKind,
        sentence: str,
        slots: tuple[SlotPlace, ...] = (),
        heads: tuple[int, ...] = (),
        fault_class: FaultClass | None = None,
    ) -> Verdict:
        return Verdict(
            kind,
            f"{sentence}, in layer {self.call.layer}",
            tuple(self.tests),
            layers=(self.call.layer,),
            slots=slots,
            replays_used=self.runs,
            fault_class=fault_class,
            op="attention",
            heads=heads,
        )

    def read_class(self, slots: tuple[SlotPlace, ...]) -> FaultClass:
        place = Relation.of(self.call, slots[0].slot).place if slots else Place.ANY
        other = {Place.BEFORE_WINDOW: FaultClass.WINDOW_EDGE, Place.OTHER_BLOCK: FaultClass.WRONG_PAGE}
        return other.get(place, FaultClass.OVER_READ)
