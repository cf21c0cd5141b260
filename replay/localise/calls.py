"""Localisation through single attention calls: no run of the model but one, and hundreds of calls a second."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from checkengine.replay.judge.bound import bounded
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.localise.classify import class_of_reads
from checkengine.replay.localise.reads import Reads, find_reads
from checkengine.replay.localise.scale import SCORES, VALUES, fit_scale
from checkengine.replay.localise.whole import MOST_SLOTS, Localised, find_all, place_of
from checkengine.replay.op_call import Ints, OpCall, OpExecutor
from checkengine.replay.window import Window, WindowStep

PARTS = ("key", "value")


@dataclass(slots=True)
class CallFault:
    """What one call does wrong; `slots` are those at fault."""

    call: OpCall
    fault_class: FaultClass
    slots: Ints
    heads: tuple[int, ...]
    token: int
    parts: tuple[str, ...]
    words: str
    attends: int
    complete: bool = True


class CallSearch:
    """Looks at the calls of one row of one step. `fills`: two numbers that tell the fault apart where a fill does."""

    def __init__(
        self, executor: OpExecutor, window: Window, step: WindowStep, row: int, fills: tuple[float, float]
    ) -> None:
        self.executor, self.window, self.step, self.row, self.fills = executor, window, step, row, fills
        self.name = window.name_of(step, row)
        self.attends = 0

    def attend(self, call: OpCall) -> torch.Tensor:
        self.attends += 1
        return self.executor.attend(call)

    def localise(self, memory: Any) -> Localised | None:
        """None where no call of the row, by itself, shows that it reads what it should not."""
        calls = self.executor.calls(self.step.replay, memory, rows=[self.row])
        faults = [fault for call, _ in calls if (fault := self.of_reads(call))]
        if not faults:
            return None
        return self.localised(faults)

    def localised(self, faults: list[CallFault]) -> Localised:
        first = faults[0]
        places = tuple(place_of(self.window, self.step, self.row, int(slot)) for slot in first.slots[:MOST_SLOTS])
        start = int(self.step.replay.record.starts[self.row])
        whole = len(first.heads) == first.call.query.shape[1]
        return Localised(
            self.step,
            self.row,
            tuple(fault.call.layer for fault in faults),
            places,
            first.complete and len(first.slots) <= MOST_SLOTS,
            first.fault_class,
            () if whole else first.heads,
            start + first.token,
            first.parts,
            first.words,
            self.attends,
        )

    def of_reads(self, call: OpCall) -> CallFault | None:
        """By the slots that it reads, else by what a fill of what it does not own changes."""
        reads = find_reads(self.attend, call)
        if reads is not None and not reads.right:
            return self._of(call, reads)
        return self._by_fill(call)

    def _of(self, call: OpCall, reads: Reads) -> CallFault:
        fault_class = class_of_reads(call, reads, self.step.owners, self.name)
        slots = next(part for part in (reads.extra, reads.repeated, reads.missing) if len(part))
        words = read_words(reads)
        parts = self.parts(call, slots)
        return CallFault(call, fault_class, slots, reads.heads, reads.token or 0, parts, words, self.attends)

    def _by_fill(self, call: OpCall) -> CallFault | None:
        quiet = call.filled(call.unowned, self.fills[0])
        expected = self.attend(quiet)

        def changes(slots: Ints) -> bool:
            return not same(self.attend(quiet.filled(slots, self.fills[1])), expected)

        slots, complete = find_all(call.unowned, changes, MOST_SLOTS)
        if not len(slots):
            return None
        loud = self.attend(quiet.filled(call.unowned, self.fills[1]))
        token, heads = where_different(expected, loud)
        masked = np.isnan(self.fills[1])
        fault_class = FaultClass.MASKED_READ if masked else FaultClass.OVER_READ
        return CallFault(call, fault_class, slots, heads, token, self.parts(quiet, slots), "", self.attends, complete)

    def parts(self, call: OpCall, slots: Ints) -> tuple[str, ...]:
        """Of keys and values, what is read at these slots."""
        quiet = call.filled(slots, self.fills[0])
        expected = self.attend(quiet)
        changed = partial(self._part_changes, quiet, slots, expected)
        return tuple(part for part in PARTS if changed(part))

    def _part_changes(self, quiet: OpCall, slots: Ints, expected: torch.Tensor, part: str) -> bool:
        return not same(self.attend(quiet.filled(slots, self.fills[1], (part,))), expected)

    def explain(self, call: OpCall, output: torch.Tensor) -> CallFault:
        """What is wrong in a call whose output lies beyond the bound."""
        token, heads = beyond(call, output)
        reads = find_reads(self.attend, call)
        if reads is not None and not reads.right:
            return self._of(call, reads)
        nothing = np.empty(0, np.int32)
        if not same(self.attend(call), output):
            words = "alone, the row gives other bits than in its batch"
            return CallFault(call, FaultClass.ROWS, nothing, heads, token, (), words, self.attends)
        fit = fit_scale(call, output)
        if fit is None:
            return CallFault(call, FaultClass.ARITHMETIC, nothing, heads, token, (), "", self.attends)
        page = nothing if fit.page is None else page_slots(call, fit.page)
        parts = tuple(part for part, what in zip(PARTS, (SCORES, VALUES), strict=True) if what in fit.what)
        return CallFault(call, FaultClass.SCALE, page, heads, token, parts, fit.words(), self.attends)


def page_slots(call: OpCall, page: int) -> Ints:
    size = call.block_size
    return (int(call.table[page]) * size + np.arange(min(size, call.length - page * size))).astype(np.int32)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, all NaN being one."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def where_different(one: torch.Tensor, other: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    """First token, and heads, of two outputs (tokens, heads, dim) that are not the same."""
    different = (~((one == other) | (one.isnan() & other.isnan()))).any(-1)
    return int(different.any(1).nonzero()[0]), tuple(different.any(0).nonzero().flatten().tolist())


def beyond(call: OpCall, output: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    """First token, and heads, beyond the bound."""
    found = bounded(call)
    over = (found.ratio(output) > 1).any(-1)
    return int(found.tokens[over.any(1)][0]), tuple(over.any(0).nonzero().flatten().tolist())


def read_words(reads: Reads) -> str:
    counted = {"too many": reads.extra, "twice or more": reads.repeated, "not at all": reads.missing}
    return "reads " + ", ".join(f"{len(slots):,} {words}" for words, slots in counted.items() if len(slots))
