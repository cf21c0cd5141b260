"""Samplers that are told, or tell, the wrong thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.sampler import SamplingRow


PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")


class PenaltyOfAnotherRow(Fault):
    """Every row is sampled with the penalties of the row before it."""

    name: ClassVar[str] = "penalty_of_another_row"
    models: ClassVar[str] = "right or wrong by the order of the requests in a batch: vllm-project/vllm#5639"
    fault_class: ClassVar[FaultClass] = FaultClass.SAMPLER

    def sampling(self, rows: Sequence[SamplingRow]) -> Sequence[SamplingRow]:
        before = [rows[index - 1].sampling for index in range(len(rows))]
        return [
            replace(row, sampling=row.sampling.model_copy(update={name: getattr(other, name) for name in PENALTIES}))
            for row, other in zip(rows, before, strict=True)
        ]


class SharedSeed(Fault):
    """All requests draw from one random stream."""

    name: ClassVar[str] = "shared_seed"
    models: ClassVar[str] = "seeded requests are indexed wrong in a batch: vllm-project/vllm#9441"
    fault_class: ClassVar[FaultClass] = FaultClass.SAMPLER

    def __init__(self, seed: int = 12345) -> None:
        self.seed = seed

    def sampling(self, rows: Sequence[SamplingRow]) -> Sequence[SamplingRow]:
        return [replace(row, sampling=row.sampling.model_copy(update={"seed": self.seed})) for row in rows]


class TokenShift(Fault):
    """Every token that is sampled comes out as the one after it: the vocabulary's padding was counted in."""

    name: ClassVar[str] = "token_shift"
    models: ClassVar[str] = "token ids out of the tokenizer's range: sgl-project/sglang#38319, NVIDIA/TensorRT-LLM#2217"
    fault_class: ClassVar[FaultClass] = FaultClass.SAMPLER

    def __init__(self, shift: int = 1, every: int = 1) -> None:
        """Acts on tokens that `every` divides."""
        self.shift, self.every = shift, every

    def sampled(self, tokens: Ints, vocabulary: int) -> Ints:
        hit = tokens % self.every == 0
        shifted: Ints = ((tokens + self.shift * hit) % vocabulary).astype(np.int32)
        return shifted
