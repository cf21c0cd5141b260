"""What captures read of a recording vLLM worker: memory and tokens as of the last recorded step."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.engine_shim.adapter import Capabilities, EngineAdapter
from checkengine.engine_shim.cloning import Budget
from checkengine.engine_shim.vllm.generator import pack_states
from checkengine.engine_shim.vllm.kv_cache import KVMemoryError
from checkengine.engine_shim.vllm.packed_image import PackedImage
from checkengine.engine_shim.vllm.recorder import StepRecorder
from checkengine.guards.action import Action
from checkengine.replay.memory import MemoryImage, UndoEntry

NULL_BLOCK = 0
"""Where vLLM's block tables end: a kernel that reads past a table finds it."""


@dataclass(frozen=True, slots=True)
class KnownBudget(Budget):
    """By a size that is known: asking the memory for it would take as long as copying a block."""

    block_bytes: int = 0

    def blocks(self, adapter: EngineAdapter) -> int:
        return sys.maxsize if self.kv_bytes is None else self.kv_bytes // max(1, self.block_bytes)


class VllmMemoryAdapter:
    """An EngineAdapter that reads: memory and tokens as of the last recorded step."""

    capabilities = Capabilities(stop=False, snapshot=True)

    def __init__(self, recorder: StepRecorder, environment: Mapping[str, Any]) -> None:
        self._recorder = recorder
        self._environment = environment
        self.first_step = 0
        """Of the capture that is being taken: generator states from there on are told."""

    def apply(self, action: Action) -> None:
        raise NotImplementedError("the scheduler stops sequences, not the worker")

    def environment(self) -> Mapping[str, Any]:
        states = self._recorder.generators.since(self.first_step)
        return {**self._environment, "generator": pack_states(states)} if states else dict(self._environment)

    def tokens(self, sequence: str) -> tuple[Sequence[int], Sequence[int]]:
        return self._recorder.ledger.tokens(sequence)

    def snapshot(self, blocks: NDArray[np.int32]) -> MemoryImage:
        cache, undo = self._recorder.cache, self._recorder.undo
        if cache is None:
            return MemoryImage(self._recorder.ledger.block_size, np.empty(0, np.int32), {}, {})
        held = np.union1d(blocks, [NULL_BLOCK]).astype(np.int32) if len(blocks) else blocks
        late = self._recorder.last_recorded + 1
        entries: Sequence[UndoEntry] = ()
        if late <= self._recorder.ledger.last_step:
            if undo is None or undo.first_step > late:
                raise KVMemoryError("a step in flight wrote into memory, and no undo ring tells what was there")
            entries = undo.entries(late, held, cache.shape.block_size)
        return PackedImage(cache, held, entries)

    def undo_entries(self, since_step: int, blocks: NDArray[np.int32] | None = None) -> Sequence[UndoEntry]:
        if self._recorder.undo is None:
            return ()
        size = self._recorder.ledger.block_size
        found = self._recorder.undo.entries(since_step, blocks, size)
        return [entry for entry in found if entry.step <= self._recorder.last_recorded]
