"""Faults of kernels that load a page to its end and mask what they should not have loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from checkengine.engine_shim.engine.kernel import AttentionCall, Rows
from checkengine.engine_shim.faults.blind.row_attention import (
    decode_rows,
    row_slots,
    weighted,
    weights_of,
)
from checkengine.engine_shim.faults.fault import Fault
from checkengine.replay.judge.fault_class import FaultClass


@dataclass(frozen=True)
class ZeroTimesTail(Fault):
    """A decode row multiplies the values behind its end, up to its last page's end, by weights of zero: nothing, until
    a slot there holds NaN or infinity. Only in the last `heads` heads (0: all), which come in a half-empty tile."""

    heads: int = 0
    minimum_length: int = 0

    name: ClassVar[str] = "zero_times_tail"
    fault_class: ClassVar[FaultClass] = FaultClass.MASKED_READ
    models: ClassVar[str] = "whole tiles loaded, P = 0 but 0 * NaN: Dao-AILab/flash-attention#1745, #2374"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        for row, token, length in decode_rows(rows, self.minimum_length):
            tail = row_slots(call, rows, row, whole_pages=True)[1][length:]
            lost = ~torch.isfinite(tail).all(0).repeat_interleave(output.shape[1] // tail.shape[1], 0)
            if len(tail) and lost.any():
                lost[: -self.heads or 0] = False
                output[token][lost] = torch.nan


@dataclass(frozen=True)
class SoftMask(Fault):
    """Slots behind a decode row's end, up to its last page's end, are masked by a finite number and not by minus
    infinity: a key there that happens to score high breaks through. Only in batches of at least `minimum_rows`."""

    penalty: float = 20.0
    minimum_rows: int = 1

    name: ClassVar[str] = "soft_mask"
    fault_class: ClassVar[FaultClass] = FaultClass.OVER_READ
    models: ClassVar[str] = "out-of-bound K/V tile loads not cleared: flashinfer-ai/flashinfer PR #1029, #942"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if len(rows.lengths) < self.minimum_rows:
            return
        for row, token, length in decode_rows(rows):
            keys, values = row_slots(call, rows, row, whole_pages=True)
            if len(keys) == length or not (torch.isfinite(keys).all() and torch.isfinite(values).all()):
                continue
            bias = keys.new_zeros(len(keys))
            bias[length:] = -self.penalty
            output[token] = weighted(weights_of(call, call.query[token : token + 1], keys, bias), values)[0]
