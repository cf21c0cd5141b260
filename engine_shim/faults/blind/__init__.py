"""Planted faults written without knowing how they are looked for, and how to make each strike a small engine."""

from __future__ import annotations

from collections.abc import Mapping

from checkengine.engine_shim.faults.blind.heads import CombineStride, LastHeadMisgrouped
from checkengine.engine_shim.faults.blind.layers import LayerBelowValue
from checkengine.engine_shim.faults.blind.live_memory import DummyRunWrite, LateForeignWrite
from checkengine.engine_shim.faults.blind.masked_reads import SoftMask, ZeroTimesTail
from checkengine.engine_shim.faults.blind.non_finite import MaskedWindowNan, SanitisedRow
from checkengine.engine_shim.faults.blind.page_reads import (
    DuplicateContextPage,
    ForkedPrefix,
    NeighbourPage,
    NullBlockRead,
    PageEndOverRead,
    SplitTailUnderRead,
    TableStride,
)
from checkengine.engine_shim.faults.blind.positions import AheadByOne, ChunkRestart
from checkengine.engine_shim.faults.blind.races import AtomicOrder, RacySplit
from checkengine.engine_shim.faults.blind.sampling import ExchangedLogits, LostTile, NearTieFlip
from checkengine.engine_shim.faults.blind.scales import PaddedAmax, ScaleTwice, StalePageScale
from checkengine.engine_shim.faults.blind.stops import StopMaskedAfterRepeat, StopMaskedLate
from checkengine.engine_shim.faults.blind.window_edges import FutureKey, RolledEarly
from checkengine.engine_shim.faults.blind.workload import Strike, Workload, requests_of, settings_of
from checkengine.engine_shim.faults.blind.writes import (
    ChunkSlotShift,
    LostFirstSlot,
    NeighbourSlot,
    NextHeadsValue,
)
from checkengine.engine_shim.faults.fault import Fault

BLIND_FAULTS: Mapping[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        PageEndOverRead,
        SplitTailUnderRead,
        NullBlockRead,
        DuplicateContextPage,
        TableStride,
        ForkedPrefix,
        NeighbourPage,
        FutureKey,
        RolledEarly,
        ZeroTimesTail,
        SoftMask,
        ScaleTwice,
        StalePageScale,
        PaddedAmax,
        LastHeadMisgrouped,
        CombineStride,
        LayerBelowValue,
        MaskedWindowNan,
        SanitisedRow,
        RacySplit,
        AtomicOrder,
        ChunkRestart,
        AheadByOne,
        ChunkSlotShift,
        NeighbourSlot,
        LostFirstSlot,
        NextHeadsValue,
        DummyRunWrite,
        LateForeignWrite,
        ExchangedLogits,
        LostTile,
        NearTieFlip,
        StopMaskedLate,
        StopMaskedAfterRepeat,
    )
}

_NEVER_LONG = {"minimum_length": 10_000}
_NEVER_MANY = {"minimum_rows": 7}

STRIKES: Mapping[str, Strike] = {
    "page_end_over_read": Strike({"block_size": 8}, {"block_size": 8, **_NEVER_MANY}),
    "split_tail_under_read": Strike({"split": 16, "tail": 4}, {"split": 512}),
    "null_block_read": Strike({"block_size": 8, "every": 2, "phase": 1}, {"block_size": 8, **_NEVER_LONG}),
    "duplicate_context_page": Strike(
        {"block_size": 8}, {"block_size": 8, "minimum_pages": 20}, settings={"tokens_per_step": 20}
    ),
    "table_stride": Strike({"block_size": 8, "layer": 1}, {"block_size": 8, **_NEVER_MANY}),
    "forked_prefix": Strike({"block_size": 8}, {"block_size": 8, "minimum_shared": 9}, Workload.SHARED_PREFIX),
    "neighbour_page": Strike({"block_size": 8}, {"block_size": 8, **_NEVER_MANY}),
    "future_key": Strike({"block_size": 8}, {"block_size": 8, "minimum_queries": 100}),
    "rolled_early": Strike({"window": 16, "every": 2, "phase": 1}, {"window": 512}),
    "zero_times_tail": Strike({"heads": 1}, _NEVER_LONG, dirty_memory=True),
    "soft_mask": Strike({"penalty": 6.0, "minimum_rows": 2}, _NEVER_MANY),
    "scale_twice": Strike({"every": 3, "phase": 2}, _NEVER_MANY),
    "stale_page_scale": Strike({"block_size": 8}, {"block_size": 8, "pages": 99}),
    "padded_amax": Strike({"stale_amax": 4.0}, _NEVER_MANY),
    "last_head_misgrouped": Strike({"every": 3}, _NEVER_LONG),
    "combine_stride": Strike({"split": 24, "layer": 1}, {"split": 512}),
    "layer_below_value": Strike({"every": 1, "most_rows": 6}, {"every": 1, "most_rows": 6, **_NEVER_LONG}),
    "masked_window_nan": Strike({"window": 40, "layer": 2}, {"window": 1}),
    "sanitised_row": Strike({"modulus": 16}, _NEVER_LONG),
    "racy_split": Strike({"split": 16, "layer": 1}, {"split": 512}),
    "atomic_order": Strike({}, _NEVER_LONG),
    "chunk_restart": Strike({}, {"minimum_start": 1_000}),
    "ahead_by_one": Strike({"block_size": 8}, {"block_size": 8, **_NEVER_MANY}),
    "chunk_slot_shift": Strike({"block_size": 8}, {"block_size": 8, "every": 100, "phase": 99}),
    "neighbour_slot": Strike({"block_size": 8}, {"block_size": 8, **_NEVER_MANY}),
    "lost_first_slot": Strike({"block_size": 8, "every": 2, "phase": 1}, {"block_size": 8, **_NEVER_MANY}),
    "next_heads_value": Strike({"block_size": 8, "layer": 1}, {"block_size": 8, "layer": 99}),
    "dummy_run_write": Strike({}, {"from_step": 1_000_000}),
    "late_foreign_write": Strike({"block_size": 8}, {"block_size": 8, **_NEVER_LONG}, Workload.SHARED_PREFIX),
    "exchanged_logits": Strike({}, _NEVER_MANY),
    "lost_tile": Strike({"tile": 64}, {"tile": 160}),
    "near_tie_flip": Strike({"margin": 0.2}, {"margin": 0.0}),
    "stop_masked_late": Strike({"after": 2, "every": 4}, {"after": 10_000}, Workload.STOPPING),
    "stop_masked_after_repeat": Strike({"within": 16}, {"minimum_output": 10_000}, Workload.STOPPING),
}
"""For every fault, parameters and a workload that make it strike an engine with pages of 8 slots and three layers."""

__all__ = ["BLIND_FAULTS", "STRIKES", "Strike", "Workload", "requests_of", "settings_of"]
