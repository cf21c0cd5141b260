"""Do wrong reads account for a wrong output? And does an edge move along with a row's end?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from checkengine.replay.judge.bound import bounded
from checkengine.replay.localise.reads import Attend, Reads, find_reads, positions_of
from checkengine.replay.op_call import Ints, OpCall

SHORTER = (1, 2, 3)
"""Tokens by which a row is cut to see whether an edge moves."""


def accounts_for(call: OpCall, reads: Reads, output: torch.Tensor) -> bool | None:
    """Whether attention over just the slots that were read gives this output within rounding. None where the reads
    are not the same for all of the call's tokens and heads."""
    if len(call.query) != 1 or len(reads.heads) != call.query.shape[1]:
        return None
    kept = np.setdiff1d(call.owned, reads.missing)
    slots = np.concatenate([kept, reads.extra, reads.repeated])
    return bool((bounded(over(call, slots)).ratio(output) <= 1).all()) if len(slots) else False


def over(call: OpCall, slots: Ints) -> OpCall:
    """A call of one query over these slots in this order, each in a block of its own."""
    rows = torch.from_numpy(np.searchsorted(call.blocks, slots // call.block_size).astype(np.int64))
    offsets = torch.from_numpy((slots % call.block_size).astype(np.int64))
    numbers = np.arange(len(slots), dtype=np.int32)
    keys, values = (memory[rows, offsets].unsqueeze(1) for memory in (call.keys, call.values))
    return replace(
        call,
        keys=keys,
        values=values,
        blocks=numbers,
        table=numbers,
        length=len(slots),
        window=None,
        beside=(),
        place=0,
    )


def slides(attend: Attend, call: OpCall, reads: Reads) -> bool:
    """Do own slots that one query leaves out keep their distance from the row's end when the row is cut short? So does
    the edge of a window; the end of a tile or a page stays where it is."""
    missing = np.sort(positions_of(call, reads.missing))
    last = call.length - 1
    if len(call.query) != 1 or not len(missing) or len(reads.extra) or len(reads.repeated):
        return False
    inside = len(missing) == missing[-1] - missing[0] + 1 and missing[-1] < last - 1
    return bool(inside) and all(moved(attend, call, missing, cut) for cut in SHORTER)


def moved(attend: Attend, call: OpCall, missing: np.ndarray, cut: int) -> bool:
    """Whether the call without its last `cut` tokens leaves out the same slots, counted from its end; what lay before
    the row's beginning is nothing."""
    if missing[-1] < cut:
        return False
    shorter = replace(call, length=call.length - cut, table=call.table[: -(-(call.length - cut) // call.block_size)])
    reads = find_reads(attend, shorter)
    if reads is None or len(reads.extra) or len(reads.repeated):
        return False
    first = 0 if missing[0] == 0 else missing[0] - cut
    return bool(
        np.array_equal(np.sort(positions_of(shorter, reads.missing)), np.arange(max(0, first), missing[-1] - cut + 1))
    )
