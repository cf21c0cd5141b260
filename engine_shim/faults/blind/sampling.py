"""Faults between logits and token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass


@dataclass(frozen=True)
class ExchangedLogits(Fault):
    """In a step of an odd number of sampling rows, at least `minimum_rows`, the last two rows' logits change places:
    each sequence goes on with the other's token."""

    minimum_rows: int = 3

    name: ClassVar[str] = "exchanged_logits"
    fault_class: ClassVar[FaultClass] = FaultClass.ROWS
    models: ClassVar[str] = "batch indexing of seeded requests: vllm-project/vllm#9441"

    def logits(self, logits: torch.Tensor, lengths: Ints) -> None:
        if len(lengths) >= max(self.minimum_rows, 2) and len(lengths) % 2:
            logits[-2:] = logits[-2:].flip(0)


@dataclass(frozen=True)
class LostTile(Fault):
    """Top-k by tiles of the vocabulary never looks at the last, partial tile, at every `every`th position."""

    tile: int = 1024
    every: int = 1

    name: ClassVar[str] = "lost_tile"
    fault_class: ClassVar[FaultClass] = FaultClass.SAMPLER
    models: ClassVar[str] = "races of a persistent top-k: vllm-project/vllm#53257, #54521"

    def loses(self, logits: torch.Tensor, position: int) -> Sequence[int]:
        if position % self.every:
            return ()
        return range(len(logits) // self.tile * self.tile, len(logits))


@dataclass(frozen=True)
class NearTieFlip(Fault):
    """The best token loses against a runner-up that is less than `margin` behind: what a drifting sum over devices does
    to near ties. The logits that others see are right."""

    margin: float = 0.05

    name: ClassVar[str] = "near_tie_flip"
    fault_class: ClassVar[FaultClass] = FaultClass.SAMPLER
    models: ClassVar[str] = "drift of an all-reduce flips near-tied best tokens: vllm-project/vllm#40725"

    def loses(self, logits: torch.Tensor, position: int) -> Sequence[int]:
        best, second = logits.topk(2).values.tolist()
        return (int(logits.argmax()),) if best - second < self.margin else ()
