"""What KV slots held before they were overwritten, of packed memory on a CPU.

Kernels keep each number of a key on a cache line that it shares with the same number of the next slots. So slots are
saved in groups, as they lie: the lines are read once for many steps. A group counts for each of its slots until that
slot is written; what else is written must be told too.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.vllm.kv_cache import KEY, VALUE, PackedCache
from checkengine.engine_shim.vllm.slot_gather import gather_groups, plan_groups
from checkengine.replay.memory import UndoEntry
from checkengine.replay.record import Ints

Places = NDArray[np.int64]
LINE = 64
"""Bytes of a cache line."""
REUSED = 4
"""A group is saved anew when a part of the ring, one in so many, was written since: else an old one that counts for a
late step would cost the ring all steps before."""


@dataclass(slots=True)
class Saved:
    step: int
    slots: Ints
    places: Places
    """Each slot's group, counted since the start; the ring holds the last ones."""
    oldest: int


class PackedUndo:
    """Keeps the old bytes of the last `steps` steps, at most `bytes` of them; the oldest steps give way.

    `save` never raises: what it cannot keep is counted in `lost`, and `first_step` moves past it. Everything that
    writes must be told to `save` or to `clear`.
    """

    def __init__(self, cache: PackedCache, steps: int = 64, bytes: int = 256 << 20) -> None:
        self.lost = 0
        self.first_step = 0
        """Every byte that was overwritten in this step or later is known."""
        shape, size = cache.shape, cache.shape.block_size
        self._cache, self._steps = cache, steps
        self._group = math.gcd(size, LINE // shape.dtype.itemsize)
        self._begins, self._lengths, self._keys, self._values = group_layout(cache, self._group)
        run = 2 * self._group * shape.dim
        self._capacity = bytes // (len(cache.layers) * shape.heads * run * shape.dtype.itemsize)
        # Written now: else the first pass over the ring would wait for fresh pages at every step.
        self._storage = torch.empty((self._capacity, len(cache.layers), shape.heads, run), dtype=cache.integer).fill_(0)
        self._out = self._storage.numpy()
        self._saved_in = np.full(cache.blocks * size, -1, np.int64)
        """By slot: the group that holds its bytes as they are now; -1 for none."""
        self._fresh = np.empty(self._capacity, np.int32)
        self._head = 0
        """Groups saved since the start."""
        self._saved: deque[Saved] = deque()
        self._lock = threading.Lock()

    def save(self, step: int, slots: Ints) -> None:
        """Keep the bytes of `slots` as they are before `step` writes them. May be called several times a step, in the
        order of writing."""
        with self._lock:
            try:
                if len(slots):
                    self._save(step, slots)
            except Exception:
                self.lost += 1
                self._forget_before(step + 1)

    def entries(self, since_step: int, blocks: Ints | None = None, block_size: int = 1) -> list[UndoEntry]:
        """Copies of what is held from this step on, in the order of writing; with `blocks` only of slots in these."""
        with self._lock:
            oldest = max(since_step, self.first_step)
            return [self._copy(saved, blocks, block_size) for saved in self._saved if saved.step >= oldest]

    def clear(self, next_step: int) -> None:
        """Forget everything: memory was written behind the ring's back before `next_step`."""
        with self._lock:
            self._forget_before(next_step)

    def warm_up(self) -> None:
        """Compile; nothing is kept."""
        self.save(-1, np.zeros(1, np.int32))
        self.clear(0)

    def _save(self, step: int, slots: Ints) -> None:
        if int(slots.min()) < 0 or int(slots.max()) >= len(self._saved_in):
            raise IndexError("a slot lies outside the KV cache")
        while self._saved and step - self._saved[0].step >= self._steps:
            self._drop_before(self._saved[0].step + 1)
        places = np.empty(len(slots), np.int64)
        oldest = max(0, self._head - self._capacity // REUSED)
        room = self._capacity - self._capacity // REUSED
        count = plan_groups(slots, self._saved_in, self._head, oldest, self._group, places, self._fresh[:room])
        if count < 0:
            raise ValueError(f"{len(slots)} slots do not fit an undo ring of {self._capacity} groups")
        self._drop_overwritten(self._head + count - self._capacity)
        fresh, size = self._fresh[:count], self._cache.shape.block_size
        gather_groups(self._cache.runs, fresh, size, self._begins, self._lengths, self._out, self._head)
        self._head += count
        self._saved.append(Saved(step, slots, places, int(places.min())))

    def _drop_overwritten(self, limit: int) -> None:
        for saved in reversed(self._saved):
            if saved.oldest < limit:
                self._drop_before(saved.step + 1)
                return

    def _forget_before(self, step: int) -> None:
        self._drop_before(step)
        self._saved_in.fill(-1)

    def _drop_before(self, step: int) -> None:
        """A step of which a part is lost is of no use: all of it goes."""
        self.first_step = max(self.first_step, step)
        while self._saved and self._saved[0].step < step:
            self._saved.popleft()

    def _copy(self, saved: Saved, blocks: Ints | None, block_size: int) -> UndoEntry:
        wanted = np.arange(len(saved.slots)) if blocks is None else np.isin(saved.slots // block_size, blocks)
        slots, groups = saved.slots[wanted], saved.places[wanted] % max(1, self._capacity)
        offsets = slots % self._cache.shape.block_size
        tensors = {}
        for name, where in ((KEY, self._keys), (VALUE, self._values)):
            found = np.take_along_axis(self._out[groups], where[offsets][:, None, None, :], axis=3)
            tensors[name] = torch.from_numpy(found).view(self._cache.shape.dtype)
        return UndoEntry(saved.step, slots, tensors)


def group_layout(cache: PackedCache, group: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each of a block's groups, where its stretches of memory begin in a run, and their lengths, shape (groups,
    stretches); and where in its group's copy each number lies, keys and values of shape (block_size, dim)."""
    size, places = cache.shape.block_size, cache.places
    both = np.concatenate([places.keys, places.values], axis=1)
    lying = np.sort(both.reshape(size // group, -1), axis=1)
    found = [stretches(line) for line in lying]
    most = max(len(begins) for begins, _ in found)
    begins, lengths = (
        np.stack([np.pad(part, (0, most - len(part))) for part in parts]) for parts in zip(*found, strict=True)
    )
    own = np.stack([np.searchsorted(lying[offset // group], both[offset]) for offset in range(size)])
    keys, values = np.split(own.astype(np.int32), 2, axis=1)
    return begins.astype(np.int32), lengths.astype(np.int32), keys, values


def stretches(places: Ints) -> tuple[Ints, Ints]:
    """Begins and lengths of what follows each other without a gap, of ascending places."""
    first = np.flatnonzero(np.diff(places, prepend=places[0] - 2) != 1)
    return places[first], np.diff(first, append=len(places))
