"""Row statistics that are still on their way from the device: no step waits for them (design rule 5)."""

from __future__ import annotations

from typing import Any

import torch

from checkengine.detectors.logits.packed import PackedStats
from checkengine.detectors.logits.stats import RowStats

_STREAMS: dict[torch.device, Any] = {}
_CUDA: Any = torch.cuda


class DeviceRowStats:
    """Made right behind the kernels that fill `packed`, on the stream that they run on.

    The copy into pinned memory runs on a stream of its own. An adapter keeps this object and reads it a step later,
    when the copy is long done. Of statistics in CPU memory it is ready at once.
    """

    __slots__ = ("_done", "_host", "_packed", "_stats")

    def __init__(self, packed: PackedStats) -> None:
        self._packed: PackedStats | None = packed
        self._stats: RowStats | None = None
        self._done: Any = None
        self._host = packed.block
        if packed.block.device.type == "cuda":
            self._host, self._done = copy_aside(packed.block)

    def __len__(self) -> int:
        return len(self._stats) if self._packed is None and self._stats is not None else self._rows()

    def ready(self) -> bool:
        """True where `collect` returns without waiting; asking never waits."""
        return self._done is None or bool(self._done.query())

    def collect(self) -> RowStats:
        """The statistics; waits for the copy (and for nothing else) where it is not ready."""
        if self._stats is None:
            packed = self._packed
            assert packed is not None
            if self._done is not None:
                self._done.synchronize()
            host = self._host.cpu()
            self._stats = PackedStats(host, packed.rows, packed.columns, packed.level, packed.first_column).row_stats()
            self._packed = self._done = None
        return self._stats

    def _rows(self) -> int:
        assert self._packed is not None
        return self._packed.rows


def copy_aside(block: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Starts the copy of a device block into pinned memory on a side stream; returns it and the event of its end."""
    stream = _STREAMS.get(block.device)
    if stream is None:
        stream = _STREAMS[block.device] = _CUDA.Stream(block.device)
    host = torch.empty(block.shape, dtype=block.dtype, pin_memory=True)
    stream.wait_stream(_CUDA.current_stream(block.device))
    with _CUDA.stream(stream):
        host.copy_(block, non_blocking=True)
        done = _CUDA.Event()
        done.record(stream)
    # The allocator must not hand the block to a later kernel of the main stream while the copy reads it.
    block.record_stream(stream)
    return host, done
