"""Faults that strike a live engine's memory between two steps: no step's own code does it, so no replay does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from checkengine.engine_shim.faults.fault import Fault
from checkengine.replay.judge.fault_class import FaultClass

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.batch import PackedBatch
    from checkengine.engine_shim.engine.kv_memory import KVMemory


@dataclass(frozen=True)
class DummyRunWrite(Fault):
    """Before a step whose number of rows is no power of two, a dummy run fills slot 0 of block 0 in every layer: its
    slot mapping is all zeros."""

    pattern: float = 3.0
    from_step: int = 0

    name: ClassVar[str] = "dummy_run_write"
    fault_class: ClassVar[FaultClass] = FaultClass.STALE_KV
    in_code: ClassVar[bool] = False
    models: ClassVar[str] = "zeros as slot mapping, dummy run writes block 0: vllm-project/vllm PR #39444"

    def strikes(self, batch: PackedBatch, memory: KVMemory) -> None:
        rows = len(batch.handles)
        if rows & (rows - 1) and batch.step >= self.from_step:
            memory.write_slots(np.zeros(1, np.int32), self.pattern)


@dataclass(frozen=True)
class LateForeignWrite(Fault):
    """When the last row of a batch of at least two enters its second slot of a page, the first slot of that page is
    overwritten with the newest slot of the batch's first row: a transfer on its way when the page changed hands."""

    block_size: int = 32
    minimum_length: int = 0

    name: ClassVar[str] = "late_foreign_write"
    fault_class: ClassVar[FaultClass] = FaultClass.STALE_KV
    in_code: ClassVar[bool] = False
    models: ClassVar[str] = "page reused after an abort, then the late write lands: sgl-project/sglang#24527, PR #35049"

    def strikes(self, batch: PackedBatch, memory: KVMemory) -> None:
        start = int(batch.starts[-1])
        decode = batch.query_lengths[-1] == 1 and batch.starts[0] > 0 and len(batch.handles) > 1
        if not decode or start < max(self.minimum_length, 1) or start % self.block_size != 1:
            return
        newest = int(batch.starts[0]) - 1
        block = int(batch.tables[0, newest // self.block_size])
        target = int(batch.tables[-1, start // self.block_size])
        for tensor in memory.tensors.values():
            tensor[target, :, 0] = tensor[block, :, newest % self.block_size]
