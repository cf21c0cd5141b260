"""Slots that a sequence reads and that its own step should have written, and did not."""

from __future__ import annotations

import numpy as np

from checkengine.replay.judge.fault_class import FaultClass
from checkengine.replay.judge.fills import Difference
from checkengine.replay.judge.trial import Bench
from checkengine.replay.localise.whole import MOST_SLOTS, Localised, Search, find_all, place_of


def localise_write(bench: Bench, found: Difference) -> Localised | None:
    """None where filling what the row's own step writes changes no bit: then it is written before it is read."""
    record, size = found.step.replay.record, bench.window.image.block_size
    start, count = int(record.starts[found.row]), int(record.query_lengths[found.row])
    positions = np.arange(start, start + count)
    own = (found.step.replay.block_tables[found.row][positions // size] * size + positions % size).astype(np.int32)
    search = Search(bench, found)
    bench.executor.write_slots(found.memory, own, found.fills[0])
    search.quiet = search.bits()
    slots, complete = find_all(np.sort(own), search.changes, MOST_SLOTS)
    if not len(slots):
        return None
    search.unowned = np.sort(own)
    layers, all_layers = search.guilty_layers(None)
    places = tuple(place_of(bench.window, found.step, found.row, int(slot)) for slot in slots)
    return Localised(
        found.step, found.row, layers, places, complete and all_layers, FaultClass.WRITE, position=places[0].position
    )
