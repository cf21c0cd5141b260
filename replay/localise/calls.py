"""Localisation through single attention calls: no run of the model but one, and hundreds of calls a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from checkengine.replay.judge.bound import bounded
from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.localise.classify import Owners, class_of_reads
from checkengine.replay.localise.company import depends_on_others, exchanged
from checkengine.replay.localise.explained import accounts_for, slides
from checkengine.replay.localise.grid import fit_grid
from checkengine.replay.localise.page_scale import SCORES, VALUES
from checkengine.replay.localise.reads import Reads, find_reads
from checkengine.replay.localise.scale import fit_scale
from checkengine.replay.localise.whole import MOST_SLOTS, Localised, find_all, place_of
from checkengine.replay.op_call import Ints, OpCall, OpExecutor, in_company
from checkengine.replay.window import Window, WindowStep

PARTS = ("key", "value")
STAND_IN = "a stand-in for another row"


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
    alone: bool = True
    """The call run alone gives its step's output."""


class CallSearch:
    """Looks at the calls of one row of one step. `fills`: two numbers that tell the fault apart where a fill does."""

    def __init__(
        self, executor: OpExecutor, window: Window, step: WindowStep, row: int, fills: tuple[float, float]
    ) -> None:
        self.executor, self.window, self.step, self.row, self.fills = executor, window, step, row, fills
        self.name = window.name_of(step, row)
        self.owners = owners_of(window, step)
        self.attends = 0

    def attend(self, call: OpCall) -> torch.Tensor:
        self.attends += 1
        return self.executor.attend(call)

    def localise(self, memory: Any) -> Localised | None:
        """None where no call of the row, alone or in the company of its batch, shows that it reads what it should
        not."""
        alone = (call for call, _ in self.executor.calls(self.step.replay, memory, rows=[self.row]))
        faults = [fault for call in alone if (fault := self.of_reads(call))]
        if not faults and len(self.step.involved) > 1:
            together = (in_company([call for call, _ in rows], self.row) for rows in self.rows_of(None, memory))
            faults = [fault for call in together if (fault := self.of_reads(call))]
        return self.localised(faults) if faults else None

    def rows_of(self, layer: int | None, memory: Any) -> list[list[tuple[OpCall, torch.Tensor]]]:
        """Calls of all rows of the step and their outputs, a list for each layer (None: of all layers)."""
        rows = list(range(len(self.step.involved)))
        layers = None if layer is None else [layer]
        found = self.executor.calls(self.step.replay, memory, rows=rows, layers=layers)
        return [found[first : first + len(rows)] for first in range(0, len(found), len(rows))]

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
        moves = slides(self.attend, call, reads)
        fault_class = FaultClass.WINDOW_EDGE if moves else class_of_reads(call, reads, self.owners, self.name)
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

    def explain(self, call: OpCall, output: torch.Tensor, memory: Any) -> CallFault:
        """What is wrong in a call whose output lies beyond the bound; `memory` as the step left it."""
        if same(self.attend(call), output):
            return self._explain(call, output, find_reads(self.attend, call))
        (rows,) = self.rows_of(call.layer, memory)
        if (words := exchanged(self.row, rows)) is not None:
            return self._fault(call, output, FaultClass.ROWS, words)
        together = in_company([each for each, _ in rows], self.row)
        if not same(self.attend(together), output):
            fault = self._explain(call, output, None)
            fault.alone = False
            return fault
        fault = self._explain(together, output, find_reads(self.attend, together))
        fault.alone = False
        if fault.fault_class is FaultClass.ARITHMETIC:
            fault.words = "it goes wrong in the company of its batch only"
        return fault

    def _explain(self, call: OpCall, output: torch.Tensor, reads: Reads | None) -> CallFault:
        """`reads`: None where the call does not give its step's output again, or its reads cannot be told."""
        wrong = reads if reads is not None and not reads.right else None
        if wrong is not None and accounts_for(call, wrong, output) is not False:
            return self._of(call, wrong)
        if call.beside and (words := depends_on_others(self.attend, call)) is not None:
            return self._fault(call, output, FaultClass.ROWS, words)
        if (fit := fit_scale(call, output)) is not None:
            fault = self._fault(call, output, FaultClass.SCALE, fit.words())
            fault.slots = page_slots(call, fit.pages)
            fault.parts = tuple(part for part, what in zip(PARTS, (SCORES, VALUES), strict=True) if what in fit.what)
            return fault
        fault = self._fault(call, output, FaultClass.ARITHMETIC, "")
        if (grid := fit_grid(call, output, fault.heads)) is not None:
            fault.fault_class, fault.words = FaultClass.SCALE, grid.words()
        elif wrong is not None:
            return self._of(call, wrong)
        return fault

    def _fault(self, call: OpCall, output: torch.Tensor, fault_class: FaultClass, words: str) -> CallFault:
        token, heads = beyond(call, output)
        return CallFault(call, fault_class, np.empty(0, np.int32), heads, token, (), words, self.attends)


def owners_of(window: Window, step: WindowStep) -> Owners:
    """Of the blocks that the step was run with: a stand-in's stand for a sequence's."""
    others = np.flatnonzero(~step.involved).tolist()
    theirs = [block for row in others for block in step.replay.block_tables[row].tolist()]
    return {**step.owners, **{block: (STAND_IN,) for block in theirs if block in window.scratch}}


def page_slots(call: OpCall, pages: Sequence[int]) -> Ints:
    """Of the row's own pages, up to its end."""
    at = np.arange(call.length)
    return call.slots_at(at[np.isin(at // call.block_size, list(pages))])


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
