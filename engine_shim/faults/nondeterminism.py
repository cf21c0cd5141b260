"""Attention kernels that do not give the same bits twice."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from checkengine.engine_shim.faults.fault import Fault, Ints, last_tokens, of_layer
from checkengine.engine_shim.faults.textbook import RowAttention, rewrite
from checkengine.replay.judge.fault_class import FaultClass

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.kernel import AttentionCall, Rows


class _Unsteady(Fault):
    """What it does depends on more than the step: that is the fault."""

    fault_class: ClassVar[FaultClass] = FaultClass.NONDETERMINISM

    def __init__(self, minimum_length: int = 16, layers: tuple[int, ...] = ()) -> None:
        self.minimum_length, self.layers = minimum_length, tuple(layers)

    def draw(self) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(os.urandom(8), "big"))


class SplitKRace(_Unsteady):
    """Two halves of a row's slots are combined without a barrier: one is read while it is being written."""

    name: ClassVar[str] = "split_k_race"
    models: ClassVar[str] = (
        "paged decode with an automatic number of splits goes wrong in some steps: pytorch/torchtitan#3235; "
        "races in a persistent kernel: vllm-project/vllm#54521"
    )

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if of_layer(layer, self.layers):
            hit = np.flatnonzero((rows.query_lengths == 1) & (rows.lengths >= self.minimum_length)).tolist()
            rewrite(call, rows, output, hit, self._compute)

    def _compute(self, row: RowAttention) -> torch.Tensor:
        weights, middle = row.weights(row.scores(), row.seen()), row.own // 2
        halves = [weights[..., part] @ row.values[:, part] for part in (slice(0, middle), slice(middle, None))]
        # As much of the second half as had been written when it was read.
        return halves[0] + halves[1] * self.draw().random()


class UninitialisedAccumulator(_Unsteady):
    """A decode row's output is added to a buffer that nobody wrote before."""

    name: ClassVar[str] = "uninitialised_accumulator"
    models: ClassVar[str] = (
        "the next kernel reads a buffer before it is written: vllm-project/vllm#45448; "
        "other answers at each run, torch.empty suspected: vllm-project/vllm#4697"
    )

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        hit = (query_lengths == 1) & (lengths >= self.minimum_length)
        if of_layer(layer, self.layers) and hit.any():
            last = torch.from_numpy(last_tokens(query_lengths)[hit])
            noise = self.draw().standard_normal((int(hit.sum()), *output.shape[1:]), np.float32)
            output[last] += torch.from_numpy(noise).to(output.dtype) * 0.01
