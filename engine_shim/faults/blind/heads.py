"""Faults of one head: its keys, its place in the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from checkengine.engine_shim.engine.kernel import AttentionCall, Rows
from checkengine.engine_shim.faults.blind.row_attention import (
    acts_in,
    decode_rows,
    row_slots,
    weighted,
    weights_of,
)
from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass


@dataclass(frozen=True)
class LastHeadMisgrouped(Fault):
    """The last query head of a decode row reads the first KV head where the row's length is odd: right page, right
    slots, wrong half of each."""

    minimum_length: int = 0
    every: int = 1
    phase: int = 0

    name: ClassVar[str] = "last_head_misgrouped"
    fault_class: ClassVar[FaultClass] = FaultClass.ARITHMETIC
    models: ClassVar[str] = "layout misread at num_kv_heads == 2: LMCache/LMCache#4467"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if not acts_in(layer, self.every, self.phase):
            return
        for row, token, length in decode_rows(rows, self.minimum_length):
            if length % 2:
                # Heads of each group turned by one group: the last head now meets the first KV head.
                keys, values = (state.roll(-1, 1) for state in row_slots(call, rows, row))
                weights = weights_of(call, call.query[token : token + 1], keys, keys.new_zeros(1))
                output[token, -1] = weighted(weights, values)[0, -1]


@dataclass(frozen=True)
class CombineStride(Fault):
    """The pass that combines the splits of a row of at least `split` slots writes its last head where the next row's
    first head belongs, in batches of at least `minimum_rows`; its own last head stays zero."""

    split: int = 64
    minimum_rows: int = 3
    layer: int = 0

    name: ClassVar[str] = "combine_stride"
    fault_class: ClassVar[FaultClass] = FaultClass.ROWS
    models: ClassVar[str] = "split-KV combine writes with a wrong stride: flagos-ai/FlagGems#5235"

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        if layer != self.layer or len(lengths) < self.minimum_rows:
            return
        last = np.cumsum(query_lengths) - 1
        for row in np.flatnonzero((query_lengths == 1) & (lengths >= self.split))[::-1]:
            token = int(last[row])
            if token + 1 < len(output):
                output[token + 1, 0] = output[token, -1]
            output[token, -1] = 0.0
