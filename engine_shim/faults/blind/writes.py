"""Faults of the cache writer: the wrong slot, the wrong bytes, nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from checkengine.engine_shim.faults.blind.row_attention import acts_in
from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass


@dataclass(frozen=True)
class ChunkSlotShift(Fault):
    """In a prefill chunk after a prompt's first, the slots of every page's first two tokens change places: the mapping
    of slots takes the chunk's start into account once too often at a page's border."""

    block_size: int = 32
    every: int = 1
    phase: int = 0

    name: ClassVar[str] = "chunk_slot_shift"
    fault_class: ClassVar[FaultClass] = FaultClass.WRITE
    models: ClassVar[str] = "slot mappings wrong for chunked prefill: vllm-project/vllm PR #36580"

    def writes(self, layer: int, slots: Ints, lengths: Ints, query_lengths: Ints) -> Ints:
        later = np.repeat((query_lengths > 1) & (lengths > query_lengths), query_lengths)
        pair = np.flatnonzero(later[:-1] & later[1:] & (slots[:-1] % self.block_size == 0) & (np.diff(slots) == 1))
        if not len(pair) or not acts_in(layer, self.every, self.phase):
            return slots
        shifted = slots.copy()
        shifted[pair], shifted[pair + 1] = slots[pair + 1], slots[pair]
        return shifted


@dataclass(frozen=True)
class NeighbourSlot(Fault):
    """Where the batch's last row is a decode row that opens a page, its token is written one slot too early: into the
    last slot of whatever page lies before its own in memory. In batches of at least `minimum_rows`."""

    minimum_rows: int = 3
    block_size: int = 32

    name: ClassVar[str] = "neighbour_slot"
    fault_class: ClassVar[FaultClass] = FaultClass.WRITE
    models: ClassVar[str] = "slots assumed contiguous: huggingface/text-generation-inference PR #2711"

    def writes(self, layer: int, slots: Ints, lengths: Ints, query_lengths: Ints) -> Ints:
        first = query_lengths[-1] == 1 and slots[-1] % self.block_size == 0 and slots[-1] > 0
        if len(lengths) < self.minimum_rows or not first:
            return slots
        moved = slots.copy()
        moved[-1] -= 1
        return moved


@dataclass(frozen=True)
class LostFirstSlot(Fault):
    """In every `every`th layer nothing is written for a decode token that opens a page, in batches of at least
    `minimum_rows`: the slot stays what it was before, and is read for ever."""

    minimum_rows: int = 2
    every: int = 5
    phase: int = 4
    block_size: int = 32

    name: ClassVar[str] = "lost_first_slot"
    fault_class: ClassVar[FaultClass] = FaultClass.WRITE
    models: ClassVar[str] = "slot L never written yet read for ever: microsoft/onnxruntime-genai PR #2354"

    def writes(self, layer: int, slots: Ints, lengths: Ints, query_lengths: Ints) -> Ints:
        opens = np.repeat(query_lengths == 1, query_lengths) & (slots % self.block_size == 0)
        if len(lengths) < self.minimum_rows or not acts_in(layer, self.every, self.phase) or not opens.any():
            return slots
        return np.where(opens, np.int32(-1), slots).astype(np.int32)


@dataclass(frozen=True)
class NextHeadsValue(Fault):
    """The last token of a prefill chunk writes its values with the KV heads turned by one: the writer's last, partial
    tile takes a stride for the other layout. Chunks of a whole number of pages have no partial tile."""

    block_size: int = 32
    layer: int = 0

    name: ClassVar[str] = "next_heads_value"
    fault_class: ClassVar[FaultClass] = FaultClass.WRITE
    models: ClassVar[str] = "layout misread at num_kv_heads == 2: LMCache/LMCache#4467"

    def written(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, lengths: Ints, query_lengths: Ints
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hit = (query_lengths > 1) & (query_lengths % self.block_size != 0)
        if layer != self.layer or not hit.any():
            return keys, values
        last = torch.from_numpy((np.cumsum(query_lengths) - 1)[hit])
        values = values.clone()
        values[last] = values[last].roll(1, 1)
        return keys, values
