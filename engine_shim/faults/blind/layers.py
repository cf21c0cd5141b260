"""Faults in which one layer uses what belongs to another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from checkengine.engine_shim.engine.kernel import AttentionCall, Rows
from checkengine.engine_shim.faults.blind.row_attention import (
    acts_in,
    decode_rows,
    row_slots,
    weighted,
    weights_of,
)
from checkengine.engine_shim.faults.fault import Fault
from checkengine.replay.judge.fault_class import FaultClass


@dataclass(frozen=True)
class LayerBelowValue(Fault):
    """In steps of at most `most_rows` rows the value of the newest slot has not arrived when a decode row reads it: the
    staging buffer still holds what the layer below wrote. The slot itself is right afterwards."""

    most_rows: int = 1
    minimum_length: int = 0
    every: int = 5
    phase: int = 4

    name: ClassVar[str] = "layer_below_value"
    fault_class: ClassVar[FaultClass] = FaultClass.ARITHMETIC
    models: ClassVar[str] = (
        "completion signalled before the output is there, small batches: vllm-project/vllm PR #45448"
    )

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        below = call.memory.row - 1
        if below < 0 or len(rows.lengths) > self.most_rows or not acts_in(layer, self.every, self.phase):
            return
        under = replace(call, memory=replace(call.memory, row=below))
        for row, token, _ in decode_rows(rows, self.minimum_length):
            keys, values = row_slots(call, rows, row)
            values = torch.cat((values[:-1], row_slots(under, rows, row)[1][-1:]))
            weights = weights_of(call, call.query[token : token + 1], keys, keys.new_zeros(1))
            output[token] = weighted(weights, values)[0]
