"""Attention kernels that leave out slots which the row owns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch

from checkengine.engine_shim.faults.fault import Fault, of_layer
from checkengine.engine_shim.faults.textbook import RowAttention, rewrite
from checkengine.replay.judge.fault_class import FaultClass

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.kernel import AttentionCall, Rows


class _LeavesOut(Fault):
    """Rows that are hit are computed again without some of their positions."""

    fault_class: ClassVar[FaultClass] = FaultClass.UNDER_READ
    layers: tuple[int, ...] = ()

    def left_out(self, length: int, queries: int) -> range:
        """Positions of one row that its queries do not see; empty: the row is not hit."""
        raise NotImplementedError

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if not of_layer(layer, self.layers):
            return
        pairs = zip(rows.lengths.tolist(), rows.query_lengths.tolist(), strict=True)
        hit = [row for row, (length, queries) in enumerate(pairs) if self.left_out(length, queries)]
        rewrite(call, rows, output, hit, self._compute)

    def _compute(self, row: RowAttention) -> torch.Tensor:
        seen = row.seen()
        lost = self.left_out(row.own, row.query.shape[1])
        seen[:, lost.start : lost.stop] = False
        return row.weights(row.scores(), seen) @ row.values


class DroppedLastPage(_LeavesOut):
    """A row whose last page is exactly full loses that page: the length of a full page is taken for zero."""

    name: ClassVar[str] = "dropped_last_page"
    models: ClassVar[str] = "wrong where the cached prefix is exactly a block long: sgl-project/sglang#22819"

    def __init__(self, block_size: int = 32, layers: tuple[int, ...] = ()) -> None:
        self.block_size, self.layers = block_size, tuple(layers)

    def left_out(self, length: int, queries: int) -> range:
        full = length % self.block_size == 0 and length > self.block_size and queries == 1
        return range(length - self.block_size, length) if full else range(0)


class ChunkBoundary(_LeavesOut):
    """A prefill chunk that continues a prompt does not see the last token before it."""

    name: ClassVar[str] = "chunk_boundary"
    models: ClassVar[str] = "worse the smaller a prompt's chunks are: vllm-project/vllm#26042"

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = tuple(layers)

    def left_out(self, length: int, queries: int) -> range:
        start = length - queries
        return range(start - 1, start) if queries > 1 and start > 1 else range(0)


class SkippedSlot(_LeavesOut):
    """A decode kernel's loop skips the last slot of every whole tile of `tile` slots."""

    name: ClassVar[str] = "skipped_slot"
    models: ClassVar[str] = (
        "paged attention is wrong with pages of more than a tile of 128: flashinfer-ai/flashinfer#4347"
    )

    def __init__(self, tile: int = 16, minimum_length: int = 0, layers: tuple[int, ...] = ()) -> None:
        self.tile, self.minimum_length, self.layers = tile, minimum_length, tuple(layers)

    def left_out(self, length: int, queries: int) -> range:
        hit = queries == 1 and length > max(self.tile, self.minimum_length)
        return range(self.tile - 1, self.tile) if hit else range(0)


class _Window(Fault):
    fault_class: ClassVar[FaultClass] = FaultClass.WINDOW_EDGE
    shift: ClassVar[int]

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = tuple(layers)

    def call(self, layer: int, call: AttentionCall) -> AttentionCall:
        if call.window is None or not of_layer(layer, self.layers):
            return call
        return replace(call, window=call.window + self.shift)


class WindowTooWide(_Window):
    """A sliding window holds one token too many."""

    name: ClassVar[str] = "window_too_wide"
    models: ClassVar[str] = (
        "sliding window attends one KV token too many: sgl-project/sglang#34273, ml-explore/mlx-lm#390"
    )
    shift: ClassVar[int] = 1


class WindowTooNarrow(_Window):
    """A sliding window holds one token too few."""

    name: ClassVar[str] = "window_too_narrow"
    models: ClassVar[str] = "the cache is rolled one step early once the window is full: huggingface/transformers#37574"
    shift: ClassVar[int] = -1
