"""What KV slots held before they were overwritten."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.replay.memory import UndoEntry
from checkengine.replay.slot_copy import bits_of, copy_slots, slots_fit


@dataclass(slots=True)
class Saved:
    """`count` slots of the ring from `begin` on."""

    step: int
    slots: NDArray[np.int32]
    begin: int
    count: int


class UndoRing:
    """Keeps the old bytes of the last `steps` steps, at most `bytes` of them; the oldest steps give way.

    The storage is allocated at the first `save`, when the shape of a slot is known. `save` never raises: what it
    cannot keep is counted in `lost`, and `first_step` moves past it.
    """

    def __init__(self, steps: int = 64, bytes: int = 256 << 20) -> None:
        self.lost = 0
        """Saves that could not be kept at all (too large, or an error)."""
        self.first_step = 0
        """Every byte that was overwritten in this step or later is known."""
        self._steps = steps
        self._bytes = bytes
        self._storage: dict[str, torch.Tensor] = {}
        self._capacity = 0
        self._end = 0
        self._saved: deque[Saved] = deque()
        self._lock = threading.Lock()

    def save(self, step: int, slots: NDArray[np.int32], tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy the bytes of `slots` as they are before `step` writes them; shapes as in UndoEntry. May be called
        several times a step, in the order of writing."""
        self._keep(step, slots, {name: tensor.shape[1:] for name, tensor in tensors.items()}, tensors, None)

    def save_from(self, step: int, slots: NDArray[np.int32], memory: Mapping[str, torch.Tensor]) -> None:
        """As `save`, straight out of a paged memory in CPU memory: tensors of shape (blocks, layers, block_size,
        heads, dim), contiguous. A quarter of the time of a copy on the way."""
        shapes = {name: (tensor.shape[1], *tensor.shape[3:]) for name, tensor in memory.items()}
        size = next(iter(memory.values())).shape[2]
        self._keep(step, slots, shapes, memory, size)

    def entries(self, since_step: int, blocks: NDArray[np.int32] | None = None, block_size: int = 1) -> list[UndoEntry]:
        """Copies of what is held from this step on, in the order of writing; with `blocks` only of slots in these, so
        that a trigger does not copy the whole ring while a step waits."""
        with self._lock:
            oldest = max(since_step, self.first_step)
            held = [saved for saved in self._saved if saved.step >= oldest]
            if blocks is None:
                return [self._copy(saved) for saved in held]
            return [self._copy_some(saved, np.isin(saved.slots // block_size, blocks)) for saved in held]

    def clear(self, next_step: int) -> None:
        """Forget everything: memory was written behind the ring's back before `next_step`."""
        with self._lock:
            self._drop_before(next_step)

    def _keep(
        self,
        step: int,
        slots: NDArray[np.int32],
        shapes: Mapping[str, Sequence[int]],
        tensors: Mapping[str, torch.Tensor],
        block_size: int | None,
    ) -> None:
        with self._lock:
            try:
                if len(slots):
                    self._allocate(shapes, tensors)
                    self._save(step, np.array(slots, np.int32), tensors, block_size)
            except Exception:
                self.lost += 1
                self._drop_before(step + 1)

    def _save(
        self, step: int, slots: NDArray[np.int32], tensors: Mapping[str, torch.Tensor], block_size: int | None
    ) -> None:
        while self._saved and step - self._saved[0].step >= self._steps:
            self._drop_before(self._saved[0].step + 1)
        begin = self._claim(len(slots))
        for name, storage in self._storage.items():
            if block_size is None:
                storage[begin : begin + len(slots)].copy_(tensors[name])
            else:
                self._copy_out(tensors[name], slots, block_size, storage, begin)
        self._saved.append(Saved(step, slots, begin, len(slots)))
        self._end = begin + len(slots)

    def _allocate(self, shapes: Mapping[str, Sequence[int]], tensors: Mapping[str, torch.Tensor]) -> None:
        if self._storage:
            return
        slot_bytes = sum(math.prod(shapes[name]) * tensor.element_size() for name, tensor in tensors.items())
        self._capacity = self._bytes // slot_bytes
        # Written now: else the first pass over the ring would wait for fresh pages at every step.
        self._storage = {
            name: torch.empty((self._capacity, *shapes[name]), dtype=tensor.dtype).fill_(0)
            for name, tensor in tensors.items()
        }

    def _copy_out(
        self, memory: torch.Tensor, slots: NDArray[np.int32], block_size: int, storage: torch.Tensor, begin: int
    ) -> None:
        bits = bits_of(memory, 3)
        if not slots_fit(bits, slots, block_size):
            raise ValueError("a slot lies outside the memory")
        copy_slots(bits, slots, block_size, bits_of(storage, 2), begin)

    def _claim(self, count: int) -> int:
        if count > self._capacity:
            raise ValueError(f"{count} slots do not fit an undo ring of {self._capacity}")
        begin = self._end
        if begin + count > self._capacity:
            while self._saved and self._saved[0].begin >= begin:
                self._drop_before(self._saved[0].step + 1)
            begin = 0
        while self._saved and self._overlaps(begin, count):
            self._drop_before(self._saved[0].step + 1)
        return begin

    def _overlaps(self, begin: int, count: int) -> bool:
        oldest = self._saved[0]
        return oldest.begin < begin + count and begin < oldest.begin + oldest.count

    def _drop_before(self, step: int) -> None:
        """A step of which a part is lost is of no use: all of it goes."""
        self.first_step = max(self.first_step, step)
        while self._saved and self._saved[0].step < step:
            self._saved.popleft()

    def _copy_some(self, saved: Saved, wanted: NDArray[np.bool_]) -> UndoEntry:
        rows = torch.from_numpy(np.flatnonzero(wanted) + saved.begin)
        tensors = {name: storage.index_select(0, rows) for name, storage in self._storage.items()}
        return UndoEntry(saved.step, saved.slots[wanted], tensors)

    def _copy(self, saved: Saved) -> UndoEntry:
        where = slice(saved.begin, saved.begin + saved.count)
        tensors = {name: storage[where].clone() for name, storage in self._storage.items()}
        return UndoEntry(saved.step, saved.slots.copy(), tensors)
