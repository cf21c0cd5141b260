"""What the shim asks of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.action import Action
from checkengine.replay.memory import MemoryImage, UndoEntry


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine can do; what it cannot, the shim leaves out and says so in its log once."""

    stop: bool = True
    retry: bool = False
    quarantine: bool = False
    snapshot: bool = False


class EngineAdapter(Protocol):
    capabilities: Capabilities

    def apply(self, action: Action) -> None:
        """Stop, retry or quarantine one sequence. Called between sampling and commit of the same step."""

    def environment(self) -> Mapping[str, Any]:
        """All that is constant and decides numbers: model, weights digest, kernels, threads, libraries, device."""

    def tokens(self, sequence: str) -> tuple[Sequence[int], Sequence[int]]:
        """Prompt and output tokens of a live sequence."""

    def snapshot(self, blocks: NDArray[np.int32]) -> MemoryImage:
        """Copy of whole blocks as they are now; numbers outside the memory are left out."""

    def undo_entries(self, since_step: int, blocks: NDArray[np.int32] | None = None) -> Sequence[UndoEntry]:
        """What the undo ring holds from that step on, oldest first; empty where there is none. With `blocks`, at least
        the slots in these: a step waits while they are copied."""


class StopOnly:
    """An EngineAdapter that stops sequences and can do nothing else; an engine of one's own begins with it and
    overrides `apply`."""

    capabilities = Capabilities(stop=True)

    def apply(self, action: Action) -> None:
        raise NotImplementedError("an engine that can stop a sequence says how")

    def environment(self) -> Mapping[str, Any]:
        return {}

    def tokens(self, sequence: str) -> tuple[Sequence[int], Sequence[int]]:
        raise KeyError(sequence)

    def snapshot(self, blocks: NDArray[np.int32]) -> MemoryImage:
        raise NotImplementedError("this engine cannot copy its KV memory")

    def undo_entries(self, since_step: int, blocks: NDArray[np.int32] | None = None) -> Sequence[UndoEntry]:
        return ()
