"""From a convicted capture to the least that shows the same fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError, Executor
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.minimise import call_passes as passes
from checkengine.replay.minimise.beside_passes import fewer_beside, smaller_beside
from checkengine.replay.minimise.budget import Budget, OutOfBudget
from checkengine.replay.minimise.call_oracle import Accept, CallOracle, Case
from checkengine.replay.minimise.op_tests import arithmetic_class, beyond_bound, wrong_reads
from checkengine.replay.minimise.step_case import StepCase, fewer_rows, one_step
from checkengine.replay.minimise.step_oracle import StepOracle
from checkengine.replay.minimise.symptom import Place, Relation, Shown, Symptom
from checkengine.replay.minimise.values import Values
from checkengine.replay.op_call import OpCall, OpExecutor, in_company, takes_calls
from checkengine.replay.playback import Playback

BUDGET = 200
"""Replays: runs of a step, or of a call."""

Pass = Callable[[Case, Accept], Case]

STRUCTURE: tuple[tuple[str, Pass], ...] = (
    ("rows beside", fewer_beside),
    ("size of rows beside", smaller_beside),
    ("pool", passes.smaller_pool),
    ("KV heads", passes.fewer_groups),
    ("query heads", passes.fewer_heads),
    ("query tokens", passes.fewer_queries),
    ("length", passes.shorter),
    ("KV heads again", passes.fewer_groups),
    ("pool again", passes.smaller_pool),
    ("block numbers", passes.renumbered),
    ("options", passes.fewer_options),
)
AGAIN: tuple[tuple[str, Pass], ...] = (
    ("rows beside", fewer_beside),
    ("KV heads", passes.fewer_groups),
    ("query heads", passes.fewer_heads),
    ("query tokens", passes.fewer_queries),
    ("pages", passes.fewer_pages),
    ("tokens", passes.fewer_tokens),
    ("pool", passes.smaller_pool),
    ("options", passes.fewer_options),
)
"""One by one, until a whole round takes nothing away."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One pass and what it left."""

    name: str
    left: str
    replays: int


@dataclass(slots=True)
class Minimised:
    """`call` is None where the search ended at the step; `stopped` says why."""

    verdict: Verdict
    symptom: Symptom
    step: StepCase
    call: OpCall | None = None
    slot: int | None = None
    values: Values = Values.RECORDED
    replays: int = 0
    minimal: bool = False
    """No single row, head, query, token, page, block or option can go. False where the budget ended the search."""
    stopped: str | None = None
    taken: list[Taken] = field(default_factory=list)

    @property
    def content_free(self) -> bool:
        return self.call is not None and self.values is not Values.RECORDED

    @property
    def sequences(self) -> int:
        return self.step.rows if self.call is None else 1 + len(self.call.beside)

    def size(self) -> dict[str, Any]:
        """As JSON."""
        if self.call is None:
            layers = sum(len(layers) for layers in self.step.window.image.layers.values())
            return {"rows": self.step.rows, "tokens": self.step.tokens, "layers": layers}
        call = self.call
        return {
            "rows": 1 + len(call.beside),
            "tokens": call.length + sum(row.length for row in call.beside),
            "query_tokens": len(call.query),
            "layers": 1,
            "heads": call.query.shape[1],
            "kv_heads": call.keys.shape[2],
            "blocks": len(call.blocks),
            "block_size": call.block_size,
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "verdict": str(self.verdict.kind),
            "symptom": self.symptom.to_json(),
            "words": self.symptom.words,
            "size": self.size(),
            "values": str(self.values),
            "content_free": self.content_free,
            "replays": self.replays,
            "minimal": self.minimal,
            "stopped": self.stopped,
            "passes": [{"pass": taken.name, "left": taken.left, "replays": taken.replays} for taken in self.taken],
        }


def minimise(capture: Capture, executor: Executor, verdict: Verdict, *, budget: int = BUDGET) -> Minimised:
    """The least that still shows what the judge convicted: same class, same op, same relation of the guilty slot to the
    sequence. The same result each time. CannotReplayError where no kernel was convicted, or the one step by itself does
    not show it."""
    return _Search(executor, verdict, Budget(budget)).run(capture)


class _Search:
    def __init__(self, executor: Executor, verdict: Verdict, budget: Budget) -> None:
        self.executor, self.verdict, self.budget = executor, verdict, budget

    def run(self, capture: Capture) -> Minimised:
        if self.verdict.kind not in (VerdictKind.CODE_DEFECT, VerdictKind.NAN_UNSAFE):
            raise CannotReplayError(f"no kernel was convicted ({self.verdict.kind}): there is nothing to shrink")
        step = one_step(capture, self.verdict)
        oracle = StepOracle(self.executor, step, self.verdict, self.budget)
        shown = self._see(oracle)
        found = Minimised(self.verdict, self._of_step(shown), step)
        self._note(found, "other rows neutralised", f"{step.rows} rows, {step.tokens} tokens")
        try:
            found.step = fewer_rows(step, oracle.accept)
            self._note(found, "rows", f"{found.step.rows} rows, {found.step.tokens} tokens")
            if takes_calls(self.executor):
                self._calls(found, self.executor, shown)
            else:
                found.stopped = f"the executor {self.executor.name} cannot run one op alone: the step is the least"
                found.minimal = True
        except OutOfBudget:
            found.stopped = f"{self.budget.limit} replays were run: give a larger budget to go on"
        found.replays = self.budget.used
        return found

    def _see(self, oracle: StepOracle) -> Shown:
        try:
            shown = oracle.see()
        except OutOfBudget:
            raise CannotReplayError(f"{self.budget.limit} replays are too few to begin with") from None
        if shown is None:
            raise CannotReplayError("the convicted step shows no wrong read and no NaN by itself: nothing to shrink")
        return shown

    def _of_step(self, shown: Shown) -> Symptom:
        """Until a call is taken out, no more is told of a read than that it is not the row's own."""
        relation = Relation(Place.ANY) if shown in (Shown.FINITE_FILL, Shown.NAN_FILL) else None
        return Symptom(self.verdict.kind, shown, relation, self.verdict.fault_class)

    def _calls(self, found: Minimised, executor: OpExecutor, shown: Shown) -> None:
        for call in self._taken_out(found.step, executor) if shown is not Shown.JUDGED else ():
            for case, symptom in self._starts(call, found.step, shown, executor):
                oracle = CallOracle(executor, symptom, self.budget)
                first = oracle.accept(case)
                if first is not None:
                    found.symptom = symptom
                    self._keep(found, first)
                    self._note(found, "one call of one layer", describe(first.call))
                    return self._shrink(found, first, oracle)
        found.stopped = "no attention call shows the fault alone: the step is the least"
        found.minimal = True
        return None

    def _taken_out(self, step: StepCase, executor: OpExecutor) -> list[OpCall]:
        """The row's attention calls in the layers at fault, alone first, then with the step's other rows beside it."""
        playback = Playback(self.executor, step.window)
        playback.prepare(step.step)
        self.budget.take()
        layers = step.layers or None
        rows = list(range(step.rows))
        calls = [call for call, _ in executor.calls(step.step.replay, playback.memory, rows=rows, layers=layers)]
        alone = [call for call in calls if call.row == step.row]
        if step.rows == 1:
            return alone
        by_layer = [[call for call in calls if call.layer == one.layer] for one in alone]
        return alone + [in_company(of_layer, step.row) for of_layer in by_layer]

    def _starts(
        self, call: OpCall, step: StepCase, shown: Shown, executor: OpExecutor
    ) -> Iterator[tuple[Case, Symptom]]:
        """The call as it was taken out, and what it may have to show from now on; the most telling first."""
        kind = self.verdict.kind
        if shown is Shown.NOT_FINITE:
            yield Case(call), Symptom(kind, shown)
        elif shown is Shown.BEYOND_BOUND:
            yield from self._by_numbers(call, executor)
        elif len(unowned := np.intersect1d(step.slots, call.hidden)):
            yield guilty_of(call, unowned, kind, shown)
        else:
            yield Case(call), Symptom(kind, shown, Relation(Place.ANY))

    def _by_numbers(self, call: OpCall, executor: OpExecutor) -> Iterator[tuple[Case, Symptom]]:
        """Coded values tell wrong reads from wrong arithmetic, and of the last query where not of all together."""

        def attend(call: OpCall) -> torch.Tensor:
            self.budget.take()
            return executor.attend(call)

        last = replace(call, query=call.query[-1:].clone())
        for candidate in (call, last) if len(call.query) > 1 else (call,):
            told = wrong_reads(attend, candidate)
            if told is not None:
                extra = np.intersect1d(told[0].extra, candidate.hidden)
                if len(extra):
                    yield guilty_of(candidate, extra, self.verdict.kind, Shown.FINITE_FILL)
                yield Case(candidate), Symptom(self.verdict.kind, Shown.WRONG_READS, None, told[1])
        output = attend(call)
        if beyond_bound(call, output):
            fault_class = arithmetic_class(call, output)
            yield Case(call), Symptom(self.verdict.kind, Shown.BEYOND_BOUND, None, fault_class)

    def _shrink(self, found: Minimised, case: Case, oracle: CallOracle) -> None:
        # Values first: should the budget end the search, what is left is nobody's content already.
        case = self._pass(found, "values", passes.plainer_values, case, oracle)
        for name, each in STRUCTURE:
            case = self._pass(found, name, each, case, oracle)
        case = self._pass(found, "values again", passes.plainer_values, case, oracle)
        while True:
            before = case
            for name, each in AGAIN:
                case = self._pass(found, name, each, case, oracle, quiet=True)
            if case is before:
                break
        self._note(found, "one by one", describe(case.call))
        found.minimal = True

    def _pass(
        self, found: Minimised, name: str, each: Pass, case: Case, oracle: CallOracle, *, quiet: bool = False
    ) -> Case:
        """Whatever was accepted is kept, also where the budget ends the pass."""
        latest = case

        def accept(candidate: Case) -> Case | None:
            nonlocal latest
            accepted = oracle.accept(candidate)
            if accepted is not None:
                latest = accepted
                self._keep(found, accepted)
            return accepted

        case = each(case, accept)
        self._keep(found, case)
        if not quiet:
            self._note(found, name, describe(case.call))
        return case

    def _keep(self, found: Minimised, case: Case) -> None:
        found.call, found.slot, found.values = case.call, case.slot, case.values

    def _note(self, found: Minimised, name: str, left: str) -> None:
        found.taken.append(Taken(name, left, self.budget.used))


def guilty_of(call: OpCall, slots: NDArray[np.int32], kind: VerdictKind, shown: Shown) -> tuple[Case, Symptom]:
    """The slot next to the call's end stands for them all."""
    slot = int(slots[np.argmin(np.abs(slots - int(call.owned[-1])))])
    return Case(call, slot), Symptom(kind, shown, Relation.of(call, slot))


def describe(call: OpCall) -> str:
    beside = f", {len(call.beside)} rows beside" if call.beside else ""
    return (
        f"{call.length} tokens, {len(call.query)} queried, {call.query.shape[1]} heads on {call.keys.shape[2]}, "
        f"{len(call.blocks)} blocks{beside}"
    )
