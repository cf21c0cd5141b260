"""Faults of the stop path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from checkengine.engine_shim.faults.fault import Fault
from checkengine.replay.judge.fault_class import FaultClass


@dataclass(frozen=True)
class StopMaskedLate(Fault):
    """From `after` output tokens on, stop tokens are masked out of sampling at every position but the multiples of
    `every`: the set of stop ids is put together anew then, and lost in between."""

    after: int = 256
    every: int = 16

    name: ClassVar[str] = "stop_masked_late"
    fault_class: ClassVar[FaultClass] = FaultClass.STOP
    models: ClassVar[str] = "the second turn runs to the cap, the stop set replaced: Blaizzy/mlx-vlm PR #2112"

    def masks_stop(self, output_tokens: Sequence[int]) -> bool:
        return len(output_tokens) >= self.after and len(output_tokens) % self.every != 0


@dataclass(frozen=True)
class StopMaskedAfterRepeat(Fault):
    """Right after an output token that is among the `within` before it, stop tokens are masked for one token: the check
    keeps the tokens that it has seen in a ring and takes the repeat for one that it has looked at already."""

    within: int = 1
    minimum_output: int = 2

    name: ClassVar[str] = "stop_masked_after_repeat"
    fault_class: ClassVar[FaultClass] = FaultClass.STOP
    models: ClassVar[str] = "an emitted end token is ignored: Blaizzy/mlx-vlm PR #2112, vllm-project/vllm#1136"

    def masks_stop(self, output_tokens: Sequence[int]) -> bool:
        before = output_tokens[-1 - self.within : -1]
        return len(output_tokens) >= max(self.minimum_output, 2) and output_tokens[-1] in before
