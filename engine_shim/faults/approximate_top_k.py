"""A sampler whose search for the largest logits misses the largest one now and then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from checkengine.engine_shim.faults.fault import Fault
from checkengine.replay.judge.fault_class import FaultClass

_MASK = (1 << 64) - 1


class ApproximateTopK(Fault):
    """Drops the best token out of what is sampled from, in a share `rate` of the draws.

    Which draws depends on the token's position and on the best token only, so a replay loses it again. What is drawn
    instead is a likely token: no single one looks wrong, unless the request is greedy.
    """

    name: ClassVar[str] = "approximate_top_k"
    models: ClassVar[str] = (
        "an approximate top-k that sometimes drops the most probable token: Anthropic's postmortem of three recent "
        "issues, September 2025"
    )
    fault_class: ClassVar[FaultClass] = FaultClass.SAMPLER

    def __init__(self, rate: float = 0.01, seed: int = 0) -> None:
        self.rate, self.seed = rate, seed

    def loses(self, logits: torch.Tensor, position: int) -> Sequence[int]:
        best = int(logits.argmax())
        return (best,) if self._uniform(position, best) < self.rate else ()

    def _uniform(self, position: int, best: int) -> float:
        """In [0, 1): the finaliser of splitmix64 (Steele, Lea, Flood 2014) over both numbers."""
        value = (self.seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + best * 0x8CB92BA72F3D8DD7) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((value ^ (value >> 31)) >> 11) * 2.0**-53
