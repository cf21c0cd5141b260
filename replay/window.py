"""A window: recorded steps made ready to run again, with the memory that they start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.step import SequenceStart
from checkengine.replay.executor import ReplayStep
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.record import Ints

ExactFrom = Literal["undo", "fills"]


@dataclass(slots=True)
class WindowStep:
    replay: ReplayStep
    involved: NDArray[np.bool_]
    """Shape (rows,): rows that are run with their own content; the others are stand-ins."""
    live: Ints
    """Sorted slots whose bytes before this step an involved row may rightly read, now or later in the window."""
    read: Ints
    """Sorted slots that involved rows may rightly read in this step, those that it writes included."""
    neighbours: UndoEntry | None = None
    """Bytes that others than the involved rows wrote into the image's blocks in the recorded step."""
    neighbours_read: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Which of `neighbours` an involved row may rightly read, now or later: a shared prefix."""
    owners: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By block of the image: the sequences in whose tables it lies in the recorded step, those not involved too."""

    @property
    def owned(self) -> Ints:
        """Slots whose bytes an involved row may rightly read, in this step or later."""
        return np.union1d(self.live, self.read).astype(np.int32)

    @property
    def number(self) -> int:
        return self.replay.record.step

    @property
    def sampling_involved(self) -> NDArray[np.bool_]:
        """Aligned with the record's sampling rows."""
        return self.involved[self.replay.record.samples]


@dataclass(slots=True)
class Window:
    image: MemoryImage
    """As of before the first step, and the scratch blocks of the stand-ins."""
    steps: list[WindowStep]
    starts: Mapping[int, SequenceStart]
    """Involved sequences by handle."""
    exact_from: ExactFrom
    """`undo`: every byte of the image is as recorded; `fills`: slots that nobody owns may hold later bytes."""
    scratch: Ints
    left: UndoEntry | None = None
    """Involved rows' own slots and their bytes as the capture found them, after the last step."""

    @property
    def slots(self) -> Ints:
        """All slots of the image but the scratch blocks', sorted."""
        blocks = np.setdiff1d(self.image.blocks, self.scratch)
        size = self.image.block_size
        return (blocks[:, None] * size + np.arange(size)).astype(np.int32).ravel()

    def unowned(self, step: WindowStep) -> Ints:
        """Slots that no involved row may rightly read in this step."""
        return np.setdiff1d(self.slots, step.owned, assume_unique=True).astype(np.int32)

    def name_of(self, step: WindowStep, row: int) -> str:
        """Public name of the sequence of an involved row."""
        return self.starts[int(step.replay.record.handles[row])].name
