"""A row whose output goes wrong in the company of its batch only: what proves that rows are mixed up?

Another row's number in this one's place, or this one's in another's; or bits that change with what the others ask or
hold, while nothing else does. Company alone proves nothing: a fault may look at the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from checkengine.replay.judge.bound import Bounded, bounded
from checkengine.replay.localise.reads import Attend
from checkengine.replay.op_call import Ints, OpCall

Rows = Sequence[tuple[OpCall, torch.Tensor]]
"""One layer's calls of all rows of a step, in their order, each with the output that the step saw."""

MOST_ROWS = 64
"""That are searched for another's numbers."""
TELLING = 8.0
"""A number tells whose it is where it lies so many times further from its own than rounding can bring it."""
MOST_WRONG = 256
"""Wrong vectors of a row that are looked for elsewhere."""
FILL = 64.0


def exchanged(own: int, rows: Rows) -> str | None:
    """Words on a head of row `own` that holds what a head of another row should, or the other way round."""
    mine = _Row(*rows[own])
    if not len(mine.wrong):
        return None
    others = [index for index in range(len(rows)) if index != own][:MOST_ROWS]
    for index in others:
        theirs = _Row(*rows[index])
        if (pair := first_pair(mine, theirs)) is not None:
            return f"head {pair[0]} holds what head {pair[1]} of row {index} of the batch should"
        if (pair := first_pair(theirs, mine)) is not None:
            return f"what head {pair[1]} should hold stands in head {pair[0]} of row {index} of the batch"
    return None


class _Row:
    """Right and found outputs of one row's tokens."""

    def __init__(self, call: OpCall, output: torch.Tensor) -> None:
        self.right: Bounded = bounded(call)
        self.found = output[self.right.tokens].double()
        over = self.right.ratio(output) > TELLING
        self.wrong = over.any(-1).nonzero()[:MOST_WRONG]
        """Token and head of each wrong vector, shape (wrong, 2)."""


def first_pair(holder: _Row, owner: _Row) -> tuple[int, int] | None:
    """A wrong head of `holder` whose numbers are, within rounding, those that a head of `owner` should have; in
    whatever tokens of theirs."""
    if not len(holder.wrong):
        return None
    exact, limit = owner.right.exact.flatten(0, 1), owner.right.certain.flatten(0, 1)
    tells = limit.amax(-1) * TELLING < exact.abs().amax(-1)
    found = holder.found[holder.wrong[:, 0], holder.wrong[:, 1]]
    match = ((found.unsqueeze(1) - exact).abs() <= limit).all(-1) & tells
    if not match.any():
        return None
    wrong, other = match.nonzero()[0].tolist()
    return int(holder.wrong[wrong, 1]), other % owner.right.exact.shape[1]


def depends_on_others(attend: Attend, call: OpCall) -> str | None:
    """Words on what of the rows beside it changes the call's bits."""
    expected = attend(call)
    asking = tuple(replace(row, query=-row.query.roll(1, -1)) for row in call.beside)
    if not _same(attend(replace(call, beside=asking)), expected):
        return "its bits depend on what other rows of the batch ask"
    slots = slots_of_others(call)
    if len(slots) and not _same(attend(call.filled(slots, FILL)), expected):
        return "its bits depend on what other rows of the batch hold"
    return None


def slots_of_others(call: OpCall) -> Ints:
    """Of the blocks in other rows' tables, and in none of the call's own."""
    blocks = np.setdiff1d(np.concatenate([np.empty(0, np.int32), *(row.table for row in call.beside)]), call.table)
    held = np.intersect1d(blocks, call.blocks)
    slots: Ints = (held[:, None] * call.block_size + np.arange(call.block_size)).astype(np.int32).ravel()
    return slots


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
