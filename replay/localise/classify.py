"""From the slots that a call reads wrong to the kind of fault."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.localise.reads import Reads, positions_of
from checkengine.replay.op_call import Ints, OpCall

Owners = Mapping[int, Collection[str]]
"""By block: names of the sequences in whose tables it lay in the recorded step."""


def class_of_reads(call: OpCall, reads: Reads, owners: Owners, name: str) -> FaultClass:
    """`name`: of the sequence whose row it is. `reads` are not right."""
    at = positions_of(call, reads.extra)
    if call.window and is_edge(call, reads, at):
        return FaultClass.WINDOW_EDGE
    if len(reads.repeated) and len(reads.missing):
        return FaultClass.WRONG_PAGE
    if not len(reads.extra):
        return FaultClass.UNDER_READ
    outside = reads.extra[at < 0]
    if len(outside) and (len(reads.missing) or not follows(call, outside)):
        return page_class(call, outside, owners, name)
    if swapped(call, reads, at) or page_left_out(call, reads):
        return FaultClass.WRONG_PAGE
    if (at >= 0).all() and (at < call.length).all() and not len(reads.missing):
        return FaultClass.WINDOW_EDGE
    return FaultClass.OVER_READ


def page_left_out(call: OpCall, reads: Reads) -> bool:
    """Is nothing read of some page that should be, while others are read beyond what they hold?"""
    missing = positions_of(call, reads.missing) // call.block_size
    owned = positions_of(call, call.owned) // call.block_size
    pages, counts = np.unique(missing, return_counts=True)
    return any(count == int((owned == page).sum()) for page, count in zip(pages, counts, strict=True))


def is_edge(call: OpCall, reads: Reads, at: np.ndarray) -> bool:
    """Own positions only, and all before the last token's window or at its beginning."""
    if (at < 0).any() or len(reads.repeated):
        return False
    first = call.length - len(call.query) + 1 - int(call.window or 0)
    edge = first + len(call.query)
    missing = positions_of(call, reads.missing)
    return bool((at < edge).all() and ((missing < call.length - 1).all() if len(missing) else len(at)))


def swapped(call: OpCall, reads: Reads, at: np.ndarray) -> bool:
    """Own slots that may not be read, in the place of as many that may."""
    return len(reads.missing) > 0 and len(at) >= len(reads.missing) and len(reads.missing) >= call.block_size // 2


def follows(call: OpCall, slots: Ints) -> bool:
    """Do the slots begin where the row's last page ends in memory? That is what reading on past an end finds."""
    end = (int(call.table[(call.length - 1) // call.block_size]) + 1) * call.block_size
    return bool(slots[0] >= end and slots[-1] < end + call.block_size)


def page_class(call: OpCall, slots: Ints, owners: Owners, name: str) -> FaultClass:
    blocks = np.unique(slots // call.block_size).tolist()
    others = [set(owners.get(block, ())) - {name} for block in blocks]
    return FaultClass.FOREIGN_PAGE if any(others) else FaultClass.WRONG_PAGE


def owners_in_words(slots: Sequence[int], block_size: int, owners: Owners, name: str) -> str:
    """Whose the slots are; empty where they are nobody's."""
    found = sorted({owner for slot in slots for owner in owners.get(int(slot) // block_size, ())} - {name})
    return f"of sequence {', '.join(found)}" if found else ""
