"""Faults of scales: the softmax's, a page's, a quantised tensor's."""

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
from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass


@dataclass(frozen=True)
class ScaleTwice(Fault):
    """The kernel for batches of at least `minimum_rows` scales the query and then the scores again, in every `every`th
    layer."""

    minimum_rows: int = 4
    every: int = 1
    phase: int = 0

    name: ClassVar[str] = "scale_twice"
    fault_class: ClassVar[FaultClass] = FaultClass.SCALE
    models: ClassVar[str] = "scales inconsistent between backends: vllm-project/vllm#33638, PR #37054"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if len(rows.lengths) < self.minimum_rows or not acts_in(layer, self.every, self.phase):
            return
        twice = replace(call, scaling=call.scaling**2)
        for row, token, _ in decode_rows(rows):
            keys, values = row_slots(call, rows, row)
            weights = weights_of(twice, call.query[token : token + 1], keys, keys.new_zeros(1))
            output[token] = weighted(weights, values)[0]


@dataclass(frozen=True)
class StalePageScale(Fault):
    """The values of every `pages`th page of a decode row come out `factor` times too large: its scale lies past the
    end of the tile of scales and is the page's former owner's. The keys' scales are right."""

    factor: float = 1.06
    pages: int = 4
    block_size: int = 32

    name: ClassVar[str] = "stale_page_scale"
    fault_class: ClassVar[FaultClass] = FaultClass.SCALE
    models: ClassVar[str] = "reads past the scales, stale scale padding: vllm-project/vllm PR #47910, PR #38148"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        for row, token, length in decode_rows(rows, (self.pages - 1) * self.block_size + 1):
            keys, values = row_slots(call, rows, row)
            page = torch.arange(length) // self.block_size
            scale = torch.where(page % self.pages == self.pages - 1, self.factor, 1.0).to(values.dtype)
            weights = weights_of(call, call.query[token : token + 1], keys, keys.new_zeros(1))
            output[token] = weighted(weights, values * scale.view(-1, 1, 1))[0]


@dataclass(frozen=True)
class PaddedAmax(Fault):
    """Where the batch is padded to the next graph size, a power of two, the quantised output takes the stale padding's
    largest value as its own: every number is rounded to a grid that is far too coarse."""

    stale_amax: float = 8.0
    levels: int = 127
    minimum_rows: int = 3

    name: ClassVar[str] = "padded_amax"
    fault_class: ClassVar[FaultClass] = FaultClass.SCALE
    models: ClassVar[str] = "padding rows' stale output spreads by per-tensor amax: vllm-project/vllm PR #37442"

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        rows = len(lengths)
        if rows < self.minimum_rows or rows & (rows - 1) == 0 or (query_lengths != 1).any():
            return
        step = self.stale_amax / self.levels
        output.div_(step).round_().mul_(step)
