"""What strikes the memory of a live engine from outside of its steps. The code that runs is right, so no replay meets
it again: it finds what is left in memory, or that the record's bits do not come again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.batch import PackedBatch
    from checkengine.engine_shim.engine.kv_memory import KVMemory


class _Strike(Fault):
    """Once, at the first step from `step` on in which a row of at least `minimum_length` tokens decodes."""

    fault_class: ClassVar[FaultClass] = FaultClass.STALE_KV
    in_code: ClassVar[bool] = False

    def __init__(self, step: int = 10, minimum_length: int = 12, seed: int = 0) -> None:
        self.step, self.minimum_length, self.seed = step, minimum_length, seed
        self.struck: tuple[int, int] | None = None
        """Step and handle, once it has happened."""

    def strikes(self, batch: PackedBatch, memory: KVMemory) -> None:
        if self.struck is not None or batch.step < self.step:
            return
        rows = np.flatnonzero((batch.query_lengths == 1) & (batch.lengths >= self.minimum_length))
        if len(rows):
            row = int(rows[0])
            self.struck = batch.step, int(batch.handles[row])
            self.strike(batch, row, memory)

    def strike(self, batch: PackedBatch, row: int, memory: KVMemory) -> None:
        raise NotImplementedError


def slots_of(batch: PackedBatch, row: int, positions: range) -> Ints:
    """Where these positions of a row lie, under the engine's block numbers."""
    at = np.arange(positions.start, positions.stop)
    size = batch.block_size
    slots: Ints = (batch.tables[row, at // size] * size + at % size).astype(np.int32)
    return slots


def overwrite(memory: KVMemory, slots: Ints, seed: int, scale: float = 1.0) -> None:
    """Numbers as another sequence's, in all layers."""
    places, random = memory.places(slots), np.random.default_rng(seed)
    for tensor in memory.tensors.values():
        old = tensor[places.rows, :, places.offsets]
        noise = torch.from_numpy(random.standard_normal(old.shape, np.float32)) * scale
        tensor[places.rows, :, places.offsets] = noise.to(tensor.dtype)


class LateTransfer(_Strike):
    """A transfer for a sequence that is gone lands late, in a page that a running one has by then."""

    name: ClassVar[str] = "late_transfer"
    models: ClassVar[str] = (
        "decode aborts, the page is reused, a late RDMA write lands in it: sgl-project/sglang#24527, #35049"
    )

    def strike(self, batch: PackedBatch, row: int, memory: KVMemory) -> None:
        length = int(batch.starts[row])
        overwrite(memory, slots_of(batch, row, range(max(0, length - 3), length)), self.seed)


class StalePage(_Strike):
    """A page of a running sequence is given back to a request that was aborted, with that one's content."""

    name: ClassVar[str] = "stale_page"
    models: ClassVar[str] = (
        "the previous prompt's answer, a stale reference after a block is reused: vllm-project/vllm#52234"
    )

    def strike(self, batch: PackedBatch, row: int, memory: KVMemory) -> None:
        size = batch.block_size
        overwrite(memory, slots_of(batch, row, range(min(size, int(batch.starts[row])))), self.seed)


class PrefixShort(_Strike):
    """The last slots of a prefix that was restored were never filled."""

    name: ClassVar[str] = "prefix_short"
    models: ClassVar[str] = "what is restored from a host cache is shorter than the page: sgl-project/sglang#30321"

    def strike(self, batch: PackedBatch, row: int, memory: KVMemory) -> None:
        size = batch.block_size
        end = min(size, int(batch.starts[row]))
        for tensor in memory.tensors.values():
            places = memory.places(slots_of(batch, row, range(max(0, end - 2), end)))
            tensor[places.rows, :, places.offsets] = 0


class ZeroedPage(_Strike):
    """The ids of blocks to be zeroed are overwritten by the next step's before they are read."""

    name: ClassVar[str] = "zeroed_page"
    models: ClassVar[str] = "a race in the zeroer of KV blocks: vllm-project/vllm#48085"

    def strike(self, batch: PackedBatch, row: int, memory: KVMemory) -> None:
        block = int(memory.nearest(batch.tables[row, :1])[0])
        for tensor in memory.tensors.values():
            tensor[block] = 0


class SwappedLayers(_Strike):
    """A page is restored with two layers in each other's places."""

    name: ClassVar[str] = "swapped_layers"
    models: ClassVar[str] = "regions of a hybrid cache confused with one another in a transfer: vllm-project/vllm#57661"

    def strike(self, batch: PackedBatch, row: int, memory: KVMemory) -> None:
        block = int(memory.nearest(batch.tables[row, :1])[0])
        for tensor in memory.tensors.values():
            if tensor.shape[1] > 1:
                tensor[block, :2] = tensor[block, :2].flip(0)


class NaNPage(_Strike):
    """A page that a running sequence reads is left with NaN by a step of nobody's."""

    name: ClassVar[str] = "nan_page"
    models: ClassVar[str] = (
        "bytes of another type reread as NaN in a page that was handed on: vllm-project/vllm#35138; "
        "dummy batches poison a block: vllm-project/vllm#57156"
    )

    def strike(self, batch: PackedBatch, row: int, memory: KVMemory) -> None:
        memory.write_slots(slots_of(batch, row, range(1)), float("nan"))
