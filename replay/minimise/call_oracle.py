"""Does a call still show the fault? Exact tests only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.replay.executor import ReplayError
from checkengine.replay.judge.bound import bounded
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.fills import FINITE_FILLS, NAN_FILL
from checkengine.replay.localise import find_all
from checkengine.replay.minimise.budget import Budget
from checkengine.replay.minimise.op_tests import arithmetic_class, beyond_bound, wrong_reads
from checkengine.replay.minimise.symptom import Place, Relation, Shown, Symptom
from checkengine.replay.minimise.values import Values, tensors_of, with_values
from checkengine.replay.op_call import OpCall, OpExecutor
from checkengine.replay.record import Ints

Changed = NDArray[np.bool_]
"""Shape (tokens, heads): outputs that show the fault."""


@dataclass(frozen=True, slots=True)
class Case:
    """A call that shows the fault, or may."""

    call: OpCall
    slot: int | None = None
    """The guilty slot, where one slot is."""
    values: Values = Values.RECORDED
    changed: Changed | None = None

    def but(self, call: OpCall, slot: int | None = None) -> Case:
        """Another call, to be tried; with made-up values it gets its own."""
        return Case(with_values(call, self.values), self.slot if slot is None else slot, self.values)


Accept = Callable[[Case], Case | None]


class CallOracle:
    """`accept` gives the case back with what was seen, or None where it does not show the same fault, or not again."""

    def __init__(self, executor: OpExecutor, symptom: Symptom, budget: Budget) -> None:
        self.executor, self.symptom, self.budget = executor, symptom, budget
        self._known: dict[str, Case | None] = {}

    def accept(self, case: Case) -> Case | None:
        key = digest(case)
        if key not in self._known:
            try:
                self._known[key] = self._accept(case)
            except (ReplayError, ValueError, IndexError, RuntimeError):
                self._known[key] = None  # A kernel may refuse shapes that it was not made for.
        return self._known[key]

    def _accept(self, case: Case) -> Case | None:
        if self.symptom.relation is not None:
            return self._reads(case, self.symptom.relation)
        tests = {
            Shown.NOT_FINITE: self._not_finite,
            Shown.WRONG_READS: self._wrong_reads,
            Shown.BEYOND_BOUND: self._beyond_bound,
        }
        changed = tests[self.symptom.shown](case.call)
        return None if changed is None else replace(case, changed=changed)

    def _reads(self, case: Case, relation: Relation) -> Case | None:
        call, hidden = case.call, case.call.hidden
        guilty = relation.slots_in(call, case.slot)
        if not len(guilty):
            return None
        quiet = call.filled(hidden, FINITE_FILLS[0])
        expected = self._run(quiet)
        changed = self._differs(quiet, expected, guilty)
        if changed is None and relation.place is Place.OTHER_BLOCK:
            guilty, changed = self._elsewhere(quiet, expected, call.unowned)
        if changed is None:
            return None
        return Case(call, int(guilty[0]) if relation.place is not Place.ANY else None, case.values, changed)

    def _differs(self, quiet: OpCall, expected: torch.Tensor, guilty: Ints) -> Changed | None:
        """Outputs that change when the guilty slots hold another number, twice alike; None where none does."""
        filled = quiet.filled(guilty, FINITE_FILLS[1])
        found = self._run(filled)
        if self.symptom.shown is Shown.NAN_FILL:
            if different(expected, found).any():
                return None
            filled = quiet.filled(guilty, NAN_FILL)
            found = self._run(filled)
        changed = different(expected, found)
        if not changed.any() or different(found, self._run(filled)).any():
            return None
        return changed

    def _elsewhere(self, quiet: OpCall, expected: torch.Tensor, unowned: Ints) -> tuple[Ints, Changed | None]:
        """A shorter call may be led to another block: the first slot that is read there, by halving."""
        pattern = NAN_FILL if self.symptom.shown is Shown.NAN_FILL else FINITE_FILLS[1]
        slots, _ = find_all(
            unowned, lambda part: bool(different(expected, self._run(quiet.filled(part, pattern))).any()), 1
        )
        if not len(slots) or Relation.of(quiet, int(slots[0])).place is not Place.OTHER_BLOCK:
            return slots, None
        return slots, self._differs(quiet, expected, slots)

    def _not_finite(self, call: OpCall) -> Changed | None:
        quiet = call.filled(call.hidden, FINITE_FILLS[0])
        if not is_finite(quiet):
            return None
        found = self._run(quiet)
        bad: Changed = (~torch.isfinite(found)).any(-1).numpy()
        if not bad.any() or not torch.isfinite(self._run(quiet, reference_of(self.executor))).all():
            return None
        return None if different(found, self._run(quiet)).any() else bad

    def _wrong_reads(self, call: OpCall) -> Changed | None:
        # One run tells most calls that read right: all slots weigh the same, and each has values of its own.
        flat = with_values(call, Values.NOISE)
        flat = replace(flat, keys=torch.zeros_like(flat.keys))
        if not beyond_bound(flat, self._run(flat)):
            return None
        runs: list[tuple[OpCall, torch.Tensor]] = []

        def attend(coded: OpCall) -> torch.Tensor:
            runs.append((coded, self._run(coded)))
            return runs[-1][1]

        found = wrong_reads(attend, call)
        if found is None or found[1] is not self.symptom.fault_class:
            return None
        reads, (last, output) = found[0], runs[-1]
        if different(output, self._run(last)).any():
            return None
        changed: Changed = np.zeros(call.query.shape[:2], np.bool_)
        changed[reads.token or 0 :, list(reads.heads)] = True
        return changed

    def _beyond_bound(self, call: OpCall) -> Changed | None:
        found = self._run(call)
        limits = bounded(call)
        beyond = (limits.ratio(found) > 1).any(-1).numpy()
        if not beyond.any():
            return None
        scaled = self.symptom.fault_class is FaultClass.SCALE
        if scaled and arithmetic_class(call, found) is not FaultClass.SCALE:
            return None
        if different(found, self._run(call)).any():
            return None
        changed: Changed = np.zeros(call.query.shape[:2], np.bool_)
        changed[limits.tokens.numpy()] = beyond
        return changed

    def _run(self, call: OpCall, kernel: str | None = None) -> torch.Tensor:
        self.budget.take()
        return self.executor.attend(call, kernel=kernel)


def reference_of(executor: object) -> str:
    """The kernel to trust, as Executor names it."""
    return str(getattr(executor, "reference", "reference"))


def is_finite(call: OpCall) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in (call.query, call.keys, call.values))


def different(first: torch.Tensor, second: torch.Tensor) -> Changed:
    """Which (token, head) outputs differ in a bit; any NaN equals any other, a payload tells nothing."""
    both = first.isnan() & second.isnan()
    # Zeros of unlike sign compare as equal.
    equal = (first == second) & (torch.signbit(first) == torch.signbit(second))
    changed: Changed = ~(equal | both).all(-1).numpy()
    return changed


def digest(case: Case) -> str:
    """Of all that decides the outcome."""
    call = case.call
    parts = (call.layer, call.kernel, call.length, call.scaling, call.window, call.softcap, dict(call.options))
    sha = hashlib.sha256(repr((*parts, call.table.tolist(), call.blocks.tolist(), case.slot)).encode())
    sha.update(repr((call.place, [(row.length, row.table.tolist()) for row in call.beside])).encode())
    for tensor in tensors_of(call).values():
        sha.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        sha.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
