"""Attention kernels whose output is not finite where their inputs are."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from checkengine.engine_shim.faults.fault import Fault, of_layer
from checkengine.engine_shim.faults.textbook import RowAttention, rewrite
from checkengine.replay.judge.fault_class import FaultClass

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.kernel import AttentionCall, Rows


class HalfOverflow(Fault):
    """Exponentials are summed in float16 without taking the largest score off: a score above 11 overflows."""

    name: ClassVar[str] = "half_overflow"
    models: ClassVar[str] = "float16 overflows and every token is an exclamation mark: vllm-project/vllm#14126"
    fault_class: ClassVar[FaultClass] = FaultClass.NON_FINITE

    def __init__(self, gain: float = 1.0, layers: tuple[int, ...] = ()) -> None:
        """`gain` multiplies exponents: the larger, the sooner it overflows."""
        self.gain, self.layers = gain, tuple(layers)

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if not of_layer(layer, self.layers):
            return
        for row in np.flatnonzero(rows.query_lengths == 1).tolist():
            sums = self._sums(RowAttention(call, rows, row))
            if not torch.isfinite(sums).all():
                rewrite(call, rows, output, [row], self._compute)

    def _sums(self, row: RowAttention) -> torch.Tensor:
        exponents = row.scores().masked_fill(~row.seen(), -torch.inf) * self.gain
        return exponents.float().exp().sum(-1, keepdim=True).half()

    def _compute(self, row: RowAttention) -> torch.Tensor:
        exponents = row.scores().masked_fill(~row.seen(), -torch.inf) * self.gain
        parts = exponents.float().exp().half()
        return ((parts.float() @ row.values.float()) / parts.float().sum(-1, keepdim=True)).to(row.values.dtype)


class MaskedRowSoftmax(Fault):
    """A decode row that sees nothing but itself has its whole tile masked: a softmax over nothing is NaN."""

    name: ClassVar[str] = "masked_row_softmax"
    models: ClassVar[str] = (
        "the whole window of a short sequence is masked, and NaN comes out: huggingface/transformers#45511"
    )
    fault_class: ClassVar[FaultClass] = FaultClass.NON_FINITE

    def __init__(self, shorter_than: int = 16, layers: tuple[int, ...] = ()) -> None:
        self.shorter_than, self.layers = shorter_than, tuple(layers)

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if of_layer(layer, self.layers):
            hit = np.flatnonzero((rows.query_lengths == 1) & (rows.lengths < self.shorter_than)).tolist()
            rewrite(call, rows, output, hit, self._compute)

    def _compute(self, row: RowAttention) -> torch.Tensor:
        return row.weights(row.scores(), torch.zeros_like(row.seen())) @ row.values
