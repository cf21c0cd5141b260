"""What replay asks of an engine: run a recorded step on given memory.

Found by the entry point group `checkengine.executors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats
from checkengine.guards.errors import UserError
from checkengine.guards.step import SequenceStart
from checkengine.replay.memory import MemoryImage
from checkengine.replay.record import StepRecord


@dataclass(frozen=True, slots=True)
class OpHash:
    """Hash of one row's output of one op, for example ("layer.12.attention", row 3); in the order of execution.

    `row` counts the record's rows. Ops that come after the last layer (the head) have layer -1.
    """

    op: str
    layer: int
    row: int
    fingerprint: int
    finite: bool


@dataclass(slots=True)
class ReplayStep:
    """A step to run: block tables in full, one array of blocks a row."""

    record: StepRecord
    block_tables: list[NDArray[np.int32]]
    starts: Mapping[int, SequenceStart]
    """By handle, for the rows that sample."""
    outputs: Mapping[int, Sequence[int]]
    """By handle: output tokens before this step (penalties and random draws need them)."""


@dataclass(slots=True)
class StepOutput:
    """Row-aligned with the record's sampling rows."""

    stats: RowStats
    tokens: NDArray[np.int32]
    hashes: list[OpHash] = field(default_factory=list)


class Executor(Protocol):
    """Memory is opaque to replay: only the executor that made it reads or writes it."""

    name: str
    granularity: str
    """The smallest op that `run(hashes=True)` tells apart, for example "attention per layer"."""
    kernels: tuple[str, ...]
    reference: str
    """Name of the kernel that is simple and slow, the one to trust."""

    def load(self, environment: Mapping[str, Any]) -> None:
        """Load model, kernels and faults as the bundle's environment says; raise ReplayError where it cannot."""

    def changed(self, environment: Mapping[str, Any]) -> list[str]:
        """What decides numbers and is not as recorded, in words: hardware, libraries, the engine's code."""

    def memory(self, image: MemoryImage) -> Any:
        """Fresh memory that holds the image; block numbers outside it are refused at run time."""

    def copy(self, memory: Any) -> Any: ...

    def write_slots(
        self, memory: Any, slots: NDArray[np.int32], pattern: float, layers: Sequence[int] | None = None
    ) -> None:
        """Fill whole slots (keys and values) with a number, in these layers or in all, through the cache writer."""

    def restore(self, memory: Any, slots: NDArray[np.int32], tensors: Mapping[str, torch.Tensor]) -> None:
        """Put bytes back as they were; names and shapes as in UndoEntry."""

    def run(self, step: ReplayStep, memory: Any, *, kernel: str | None = None, hashes: bool = False) -> StepOutput:
        """Run one step: writes its KV into `memory`. `kernel` None is the recorded one."""


class ReplayError(UserError):
    """Replay cannot go on; the message says what, where and what to do."""

    exit_code = 129


class NoSuchChoiceError(ReplayError):
    """The command line names a kernel or an executor that is not there; the message lists what there is."""


class WeightsChangedError(ReplayError):
    """The weights that are here are not the weights that were recorded."""


class CannotReplayError(ReplayError):
    """The bundle is sound, and there is nothing to judge it by: memory overwritten, no executor, no involved row."""

    exit_code = 125
