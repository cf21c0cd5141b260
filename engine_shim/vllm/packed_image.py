"""A memory image that is copied as it lies, and put into slots when it is read: the engine waits for the copy only."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from checkengine.engine_shim.vllm.kv_cache import GROUP, PackedCache
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.record import Ints


class PackedImage(MemoryImage):
    """`late`: what steps overwrote that are not part of the capture; taken back with the first reading."""

    def __init__(self, cache: PackedCache, blocks: Ints, late: Sequence[UndoEntry] = ()) -> None:
        self.block_size = cache.shape.block_size
        self.blocks = blocks[(blocks >= 0) & (blocks < cache.blocks)].astype(np.int32)
        self.layers: Mapping[str, Sequence[int]] = {GROUP: list(range(len(cache.layers)))}
        held = torch.from_numpy(self.blocks.astype(np.int64))
        self._raw: list[torch.Tensor] | None = [layer.index_select(0, held) for layer in cache.layers]
        self._cache = cache
        self._late = tuple(late)
        self._found: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()

    @property
    def tensors(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        with self._lock:
            if self._raw is not None:
                packed = self._cache.like(self._raw)
                whole = packed.image(np.arange(len(self.blocks), dtype=np.int32))
                image = MemoryImage(self.block_size, self.blocks, whole.tensors, self.layers)
                image.take_back(self._late)
                self._found, self._raw, self._late = image.tensors, None, ()
            return self._found
