"""Faults at the edges of what a query may see."""

from __future__ import annotations

from dataclasses import dataclass
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
class FutureKey(Fault):
    """In prefill, the last query of every page also sees the first key of the next page: the right edge of the window
    is one too wide at tile borders. Only in chunks of at least `minimum_queries`."""

    minimum_queries: int = 2
    block_size: int = 32

    name: ClassVar[str] = "future_key"
    fault_class: ClassVar[FaultClass] = FaultClass.WINDOW_EDGE
    models: ClassVar[str] = "prefill window (w-1, w-1) in place of (w-1, 0): ModelTC/LightLLM PR #1311"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        for row in rows.prefill.tolist():
            first, queries, length = (int(of[row]) for of in (rows.first_tokens, rows.query_lengths, rows.lengths))
            for position in range(length - queries, length - 1):
                if queries >= self.minimum_queries and position % self.block_size == self.block_size - 1:
                    keys, values = (state[: position + 2] for state in row_slots(call, rows, row))
                    token = first + position - (length - queries)
                    weights = weights_of(call, call.query[token : token + 1], keys, keys.new_zeros(1))
                    output[token] = weighted(weights, values)[0]


@dataclass(frozen=True)
class RolledEarly(Fault):
    """In every `every`th layer a decode row of at least `window` tokens does not see the key at the window's left
    edge: a ring of `window` slots was rolled one step before its token was read."""

    window: int = 128
    every: int = 5
    phase: int = 4

    name: ClassVar[str] = "rolled_early"
    fault_class: ClassVar[FaultClass] = FaultClass.WINDOW_EDGE
    models: ClassVar[str] = "cache rolled one step early once length = window: huggingface/transformers#37574"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if not acts_in(layer, self.every, self.phase):
            return
        for row, token, length in decode_rows(rows, self.window):
            keys, values = row_slots(call, rows, row)
            bias = keys.new_zeros(length)
            bias[length - self.window] = -torch.inf
            output[token] = weighted(weights_of(call, call.query[token : token + 1], keys, bias), values)[0]
