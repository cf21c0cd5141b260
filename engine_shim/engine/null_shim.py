"""The shim's place in the engine, and what stands there when no shim is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.guards.action import Action
from checkengine.replay.record import StepRecord


class ShimStep(Protocol):
    def logits(self, logits: torch.Tensor) -> None:
        """Raw logits of the sampling rows, (rows, vocabulary)."""

    def tokens(self, tokens: NDArray[np.int32]) -> Sequence[Action]:
        """Sampled tokens of the sampling rows; what is to be done about them."""


class Shim(Protocol):
    def step(self, record: StepRecord) -> AbstractContextManager[ShimStep]: ...


class _NullStep:
    def logits(self, logits: torch.Tensor) -> None:
        """Nobody looks."""

    def tokens(self, tokens: NDArray[np.int32]) -> Sequence[Action]:
        return ()


class NullShim:
    """Sees nothing, does nothing."""

    def __init__(self) -> None:
        self._step = nullcontext(_NullStep())

    def step(self, record: StepRecord) -> AbstractContextManager[ShimStep]:
        return self._step
