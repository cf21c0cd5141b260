"""What a planted fault did in one row of one step: the truth that a verdict is held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkengine.engine_shim.faults import FaultClass
from checkengine.engine_shim.faults.over_read import PastTheEnd
from checkengine.replay.capture import Capture
from checkengine.replay.judge.verdict import Verdict
from checkengine.replay.localise.whole import MOST_SLOTS
from checkengine.replay.record import Ints
from checkengine.selftest_cases import Case

PAGES = (FaultClass.WRONG_PAGE, FaultClass.FOREIGN_PAGE)


def class_of(case: Case, capture: Capture, handle: int) -> FaultClass:
    """Whose page stands in for the right one is the traffic's affair: it is another sequence's where it lies in that
    one's table in this step."""
    if case.fault_class not in PAGES:
        return case.fault_class
    size = capture.memory.block_size
    blocks = {slot // size for slot in read_without_right(case, capture, handle)}
    _, tables = list(capture.window.walk())[-1]
    others = {int(block) for other, table in tables.items() if other != handle for block in table}
    return FaultClass.FOREIGN_PAGE if blocks & others else FaultClass.WRONG_PAGE


def is_exact(case: Case, verdict: Verdict, capture: Capture, handle: int) -> bool | None:
    """The right layer and, where slots are read without right, just those; None where a fault has no one place."""
    if case.layer is None:
        return None
    slots = read_without_right(case, capture, handle)
    if not slots or len(slots) > MOST_SLOTS:
        return verdict.layer == case.layer
    told = {place.slot for place in verdict.slots} - owned(capture, handle)
    return verdict.layer == case.layer and told == slots


def owned(capture: Capture, handle: int) -> set[int]:
    """Slots of the row's own, up to its length in the capture's last step. A verdict may name some that a query read
    before its turn."""
    record, tables = list(capture.window.walk())[-1]
    row = int(np.flatnonzero(record.handles == handle)[0])
    return slots_of(tables[handle], int(record.starts[row] + record.query_lengths[row]), capture.memory.block_size)


def read_without_right(case: Case, capture: Capture, handle: int) -> set[int]:
    """Slots that the row's kernel is told to read in the capture's last step and that are not the row's."""
    record, by_handle = list(capture.window.walk())[-1]
    row = int(np.flatnonzero(record.handles == handle)[0])
    size, queries = capture.memory.block_size, record.query_lengths
    tables = padded([by_handle[other] for other in record.handles.tolist()])
    lengths = (record.starts + queries).astype(np.int32)
    told, read = case.fault.reads(case.layer or 0, tables, lengths, queries)
    if isinstance(case.fault, PastTheEnd) and case.fault.hits(lengths, queries)[row]:
        read = lengths + 1
    return slots_of(told[row], int(read[row]), size) - slots_of(tables[row], int(lengths[row]), size)


def padded(tables: Sequence[Ints]) -> Ints:
    """As the engine packs them: -1 behind a row's blocks."""
    packed = np.full((len(tables), max(map(len, tables)) + 1), -1, np.int32)
    for row, table in enumerate(tables):
        packed[row, : len(table)] = table
    return packed


def slots_of(table: np.ndarray, length: int, size: int) -> set[int]:
    at = np.arange(length)
    return set((table[at // size] * size + at % size).tolist())
