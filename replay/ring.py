"""A ring of frames of any size in one buffer of 32-bit words."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkengine.replay.frame import CHECKPOINT, Words

Longs = NDArray[np.int64]


class FrameRing:
    """Frames are numbered from 0 and never wrap around the end of the buffer. Not safe for threads by itself: a
    caller holds a lock, except while it copies out of a snapshot."""

    def __init__(self, steps: int, words: int) -> None:
        if steps < 1 or words < 1:
            raise ValueError(f"a ring needs at least one step and one word, not {steps} and {words}")
        self.steps = steps
        self.capacity = words + words % 2
        # Touched now, so that no step pays for a page fault.
        self.buffer: Words = np.full(self.capacity, 0, np.int32)
        self._doubles: NDArray[np.uint64] = self.buffer.view(np.uint64)
        self.tail = 0
        """Number of the oldest frame."""
        self.head = 0
        """Number of the next frame."""
        self.offsets = array("q", bytes(8 * steps))
        self.lengths = array("q", bytes(8 * steps))
        self.step_numbers = array("q", bytes(8 * steps))
        self.marks = array("q", bytes(8 * steps))
        self._end = 0
        self._claimed = (0, 0)

    @property
    def bytes(self) -> int:
        return self.buffer.nbytes + 4 * self.offsets.itemsize * self.steps

    def claim(self, words: int) -> Words:
        """Space for the next frame, on 8 bytes; the oldest frames give way. Nothing is published yet."""
        if words > self.capacity:
            raise ValueError(f"a frame of {words} words does not fit a ring of {self.capacity}")
        begin = self._end + self._end % 2
        if begin + words > self.capacity:
            self._evict_from(begin)
            begin = 0
        end, tail = begin + words, self.tail
        while tail < self.head:
            offset = self.offsets[tail % self.steps]
            overlaps = offset < end and begin < offset + self.lengths[tail % self.steps]
            if not overlaps and self.head - tail < self.steps:
                break
            tail += 1
        self.tail = tail
        self._claimed = (begin, words)
        return self.buffer[begin:end]

    def _evict_from(self, begin: int) -> None:
        """The frames between here and the end of the buffer are the oldest ones: they go before any at its front."""
        while self.tail < self.head and self.offsets[self.tail % self.steps] >= begin:
            self.tail += 1

    def publish(self, step: int, mark: int) -> None:
        begin, words = self._claimed
        slot = self.head % self.steps
        self.offsets[slot], self.lengths[slot] = begin, words
        self.step_numbers[slot], self.marks[slot] = step, mark
        self.head += 1
        self._end = begin + words

    def evict(self) -> bool:
        """Give up the oldest frame; False where there is none."""
        if self.tail == self.head:
            return False
        self.tail += 1
        return True

    def find(self, step: int) -> int | None:
        """Number of the frame of a step; outcomes come soon after, so the newest are looked at first."""
        if self.head > self.tail and self.step_numbers[(self.head - 1) % self.steps] == step:
            return self.head - 1
        for number in range(self.head - 2, self.tail - 1, -1):
            if self.step_numbers[number % self.steps] == step:
                return number
        return None

    def frame(self, number: int) -> Words:
        slot = number % self.steps
        return self.buffer[self.offsets[slot] : self.offsets[slot] + self.lengths[slot]]

    def doubles(self, number: int) -> NDArray[np.uint64]:
        """The frame and what follows, two words each."""
        return self._doubles[self.offsets[number % self.steps] // 2 :]

    def snapshot(self, gap: int) -> Snapshot:
        """Where the frames lie now, without their content; frames before number `gap` are left out."""
        numbers = np.arange(max(self.tail, gap), self.head)
        slots = numbers % self.steps
        return Snapshot(
            self.buffer,
            int(numbers[0]) if len(numbers) else self.head,
            np.array(self.offsets)[slots],
            np.array(self.lengths)[slots],
            np.array(self.step_numbers)[slots],
            np.array(self.marks)[slots],
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Arrays are aligned with frames `first`, `first` + 1 …"""

    buffer: Words
    first: int
    offsets: Longs
    lengths: Longs
    steps: Longs
    marks: Longs

    def from_checkpoint(self, step: int | None) -> range:
        """Indices of the frames from the last checkpoint at or before `step`, else from the oldest checkpoint."""
        checkpoints = np.flatnonzero(self.marks & CHECKPOINT)
        if not len(checkpoints):
            return range(0)
        before = checkpoints[self.steps[checkpoints] <= step] if step is not None else checkpoints[:0]
        return range(int(before[-1] if len(before) else checkpoints[0]), len(self.steps))

    def copy(self, indices: range) -> dict[int, Words]:
        """The frames' words. Neighbouring frames share one copy; a frame may be overwritten while it is copied."""
        frames: dict[int, Words] = {}
        begin = indices.start
        while begin < indices.stop:
            end = begin + 1
            while end < indices.stop and self.offsets[end] > self.offsets[end - 1]:
                end += 1
            origin = self.offsets[begin]
            run = self.buffer[origin : self.offsets[end - 1] + self.lengths[end - 1]].copy()
            for index in range(begin, end):
                frames[index] = run[self.offsets[index] - origin :][: self.lengths[index]]
            begin = end
        return frames

    def surviving(self, indices: range, tail: int) -> range:
        """What of these was not overwritten, now that the oldest frame is `tail`, from a checkpoint on."""
        begin = max(indices.start, tail - self.first)
        while begin < indices.stop and not self.marks[begin] & CHECKPOINT:
            begin += 1
        return range(begin, max(begin, indices.stop))
