"""Paged attention kernels that read one slot past the sequence's end.

The slot is the next one in memory: the tail of the row's last page or, where that page is full, the first slot of the
page behind it, whoever owns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.faults.fault import Fault, Ints, of_layer
from checkengine.engine_shim.faults.pages import with_next_page
from checkengine.engine_shim.faults.textbook import RowAttention, rewrite
from checkengine.replay.judge.fault_class import FaultClass

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.kernel import AttentionCall, Rows


class PastTheEnd(Fault):
    """Makes the next page known to the kernel; what is read of it is the fault's own business."""

    fault_class: ClassVar[FaultClass] = FaultClass.OVER_READ

    def __init__(self, minimum_length: int = 0, block_size: int = 32, layers: tuple[int, ...] = ()) -> None:
        """Acts on rows of at least `minimum_length` tokens; `layers` empty: in every layer."""
        self.minimum_length, self.block_size, self.layers = minimum_length, block_size, tuple(layers)

    def hits(self, lengths: Ints, query_lengths: Ints) -> NDArray[np.bool_]:
        hit: NDArray[np.bool_] = (query_lengths == 1) & (lengths >= self.minimum_length)
        return hit

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        hit = self.hits(lengths, query_lengths)
        if not of_layer(layer, self.layers) or not hit.any():
            return tables, lengths
        return with_next_page(tables, lengths, hit, self.block_size), self.told(lengths, hit)

    def told(self, lengths: Ints, hit: NDArray[np.bool_]) -> Ints:
        """Lengths that the kernel is told."""
        return lengths


class OverRead(PastTheEnd):
    """Tells the decode kernel that a row is one token longer than it is."""

    name: ClassVar[str] = "over_read"
    models: ClassVar[str] = (
        "off-by-one in a paged attention kernel's bound: vllm-project/vllm#53856 (V slots past seq_len), "
        "sgl-project/sglang#32477"
    )

    def told(self, lengths: Ints, hit: NDArray[np.bool_]) -> Ints:
        return np.where(hit, lengths + 1, lengths).astype(np.int32)


class OverReadPrefill(OverRead):
    """A prefill chunk's causal bound is one too far: every query sees the token behind it, the last one a slot past
    the end."""

    name: ClassVar[str] = "over_read_prefill"
    models: ClassVar[str] = "paged prefill loads K and V tiles out of bounds: flashinfer-ai/flashinfer#1029"

    def hits(self, lengths: Ints, query_lengths: Ints) -> NDArray[np.bool_]:
        return (query_lengths > 1) & (lengths >= self.minimum_length)


class _PartOfASlot(PastTheEnd):
    """The kernel proper stays in bounds; a decode row that is hit is computed again, one slot too many in reach."""

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if of_layer(layer, self.layers):
            hit = np.flatnonzero(self.hits(rows.lengths, rows.query_lengths)).tolist()
            rewrite(call, rows, output, hit, self.compute, extra=1)

    def compute(self, row: RowAttention) -> torch.Tensor:
        """Output (heads, 1, dim) with keys and values of one slot past the end at hand."""
        raise NotImplementedError


class OverReadKeys(_PartOfASlot):
    """The score of one key past the end takes part in the softmax; its value is left out."""

    name: ClassVar[str] = "over_read_keys"
    models: ClassVar[str] = (
        "one unmasked load reads the next row, and the exponential with it: fla-org/flash-linear-attention#1134"
    )

    def compute(self, row: RowAttention) -> torch.Tensor:
        seen = row.seen(1)
        seen[:, -1] = True
        return row.weights(row.scores(), seen)[..., : row.own] @ row.values[:, : row.own]


class OverReadValues(_PartOfASlot):
    """The last weight is used once more, on the value past the end."""

    name: ClassVar[str] = "over_read_values"
    models: ClassVar[str] = (
        "V slots past seq_len are multiplied with what is left in the weights: vllm-project/vllm#53856"
    )

    def compute(self, row: RowAttention) -> torch.Tensor:
        weights = row.weights(row.scores()[..., : row.own], row.seen())
        return torch.cat((weights, weights[..., -1:]), -1) @ row.values


class MaskedOverRead(PastTheEnd):
    """The value past the end is added with weight zero: no finite content shows, NaN does."""

    name: ClassVar[str] = "masked_over_read"
    models: ClassVar[str] = (
        "whole tiles are loaded and 0 times NaN is NaN: Dao-AILab/flash-attention#2374, vllm-project/vllm#641"
    )
    fault_class: ClassVar[FaultClass] = FaultClass.MASKED_READ

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if not of_layer(layer, self.layers):
            return
        for index in np.flatnonzero(self.hits(rows.lengths, rows.query_lengths)).tolist():
            row = RowAttention(call, rows, index, int(rows.lengths[index]) + 1)
            output[row.tokens] += 0.0 * row.values[:, row.own :].transpose(0, 1)
