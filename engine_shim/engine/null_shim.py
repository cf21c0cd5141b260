"""The shim's place in the engine, and what stands there when no shim is wanted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.guards.action import Action
from checkengine.replay.record import StepRecord

logger = logging.getLogger(__name__)


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


class GuardedStep:
    """A shim's step that cannot take the engine down: once it raises, the step goes on without it."""

    def __init__(self, shim: Shim, record: StepRecord) -> None:
        self._step: ShimStep | None = None
        self._context: AbstractContextManager[ShimStep] | None = None
        try:
            self._context = shim.step(record)
            self._step = self._context.__enter__()
        except Exception:
            self._failed()

    def logits(self, logits: torch.Tensor) -> None:
        if self._step is not None:
            try:
                self._step.logits(logits)
            except Exception:
                self._failed()

    def tokens(self, tokens: NDArray[np.int32]) -> Sequence[Action]:
        if self._step is not None:
            try:
                return self._step.tokens(tokens)
            except Exception:
                self._failed()
        return ()

    def _failed(self) -> None:
        self._step = None
        logger.exception("the shim raised; this step goes on without it")

    def __enter__(self) -> GuardedStep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._context is not None:
            try:
                self._context.__exit__(kind, error, traceback)
            except Exception as raised:
                if raised is not error:
                    self._failed()
