"""Attention that is right and rounds otherwise: other orders of summation. What a judge must never call a defect."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from checkengine.engine_shim.faults.fault import Fault
from checkengine.engine_shim.faults.textbook import RowAttention, rewrite

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.kernel import AttentionCall, Rows


class _OtherOrder(Fault):
    """All rows are computed again, accumulated in float32 at least and rounded once, at the end."""

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        rewrite(call, rows, output, list(range(len(rows.lengths))), self._rounded)

    def _rounded(self, row: RowAttention) -> torch.Tensor:
        dtype, wide = row.query.dtype, torch.float64 if row.query.dtype == torch.float64 else torch.float32
        row.query, row.keys, row.values = row.query.to(wide), row.keys.to(wide), row.values.to(wide)
        return self.compute(row).to(dtype)

    def compute(self, row: RowAttention) -> torch.Tensor:
        raise NotImplementedError


class ChunkedSoftmax(_OtherOrder):
    """Slots in chunks with a running maximum, as flash attention sums them."""

    name: ClassVar[str] = "chunked_softmax"
    models: ClassVar[str] = "online softmax over tiles: Milakov and Gimelshein 2018, Dao et al. 2022"

    def __init__(self, chunk: int = 16) -> None:
        self.chunk = chunk

    def compute(self, row: RowAttention) -> torch.Tensor:
        scores = row.scores().masked_fill(~row.seen(), -torch.inf)
        peak = self._sinks(row, scores)
        total = torch.exp(peak - peak) if row.call.sinks is not None else torch.zeros_like(peak)
        output = torch.zeros(*scores.shape[:2], row.values.shape[2], dtype=scores.dtype)
        for first in range(0, row.own, self.chunk):
            part = scores[..., first : first + self.chunk]
            higher = torch.maximum(peak, part.amax(-1, keepdim=True))
            safe = torch.where(higher == -torch.inf, 0.0, higher)
            kept, weights = torch.exp(peak - safe), torch.exp(part - safe)
            total = total * kept + weights.sum(-1, keepdim=True)
            output = output * kept + weights @ row.values[:, first : first + self.chunk]
            peak = higher
        return output / total

    def _sinks(self, row: RowAttention, scores: torch.Tensor) -> torch.Tensor:
        if row.call.sinks is None:
            return torch.full((*scores.shape[:2], 1), -torch.inf, dtype=scores.dtype)
        return row.call.sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, scores.shape[1], 1)


class ReversedSum(_OtherOrder):
    """Slots from the last to the first."""

    name: ClassVar[str] = "reversed_sum"
    models: ClassVar[str] = "another order of the same sum"

    def compute(self, row: RowAttention) -> torch.Tensor:
        weights = row.weights(row.scores(), row.seen())
        return weights.flip(-1) @ row.values.flip(1)


class SplitK(_OtherOrder):
    """Slots in `parts` parts that are summed apart and then added, as split-k decode does."""

    name: ClassVar[str] = "split_k"
    models: ClassVar[str] = "split-k decode with a fixed number of splits"

    def __init__(self, parts: int = 4) -> None:
        self.parts = parts

    def compute(self, row: RowAttention) -> torch.Tensor:
        weights = row.weights(row.scores(), row.seen())
        parts = zip(weights.tensor_split(self.parts, -1), row.values.tensor_split(self.parts, 1), strict=True)
        return sum((part @ values for part, values in parts), torch.zeros(()))


class FloatingWide(_OtherOrder):
    """Everything in float64, rounded once."""

    name: ClassVar[str] = "floating_wide"
    models: ClassVar[str] = "a kernel that accumulates in a wider type"

    def compute(self, row: RowAttention) -> torch.Tensor:
        row.query, row.keys, row.values = row.query.double(), row.keys.double(), row.values.double()
        return row.weights(row.scores(), row.seen()) @ row.values


HEALTHY: dict[str, type[Fault]] = {
    variant.name: variant for variant in (ChunkedSoftmax, ReversedSum, SplitK, FloatingWide)
}
