"""KV memory as it is carried: whole blocks, and the bytes that later writes overwrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(slots=True)
class UndoEntry:
    """The bytes of `slots` before `step` wrote them; names as in MemoryImage, shape (slots, layers, heads, dim)."""

    step: int
    slots: NDArray[np.int32]
    tensors: Mapping[str, torch.Tensor]


@dataclass(slots=True)
class MemoryImage:
    """Some blocks of a paged KV memory, under the block numbers of the engine that was recorded.

    A tensor's first axis is aligned with `blocks`: `<group>.key` and `<group>.value` have shape
    (blocks, layers of the group, block_size, heads, dim). `layers` names the model's layer index of each of a
    group's layers.
    """

    block_size: int
    blocks: NDArray[np.int32]
    tensors: dict[str, torch.Tensor]
    layers: Mapping[str, Sequence[int]]

    def undo(self, entries: Sequence[UndoEntry]) -> MemoryImage:
        """A copy as of before the first of `entries`, which are in the order in which they were written."""
        image = MemoryImage(
            self.block_size, self.blocks, {name: tensor.clone() for name, tensor in self.tensors.items()}, self.layers
        )
        image.take_back(entries)
        return image

    def take_back(self, entries: Sequence[UndoEntry]) -> None:
        """As `undo`, in place."""
        row = {int(block): index for index, block in enumerate(self.blocks)}
        for entry in reversed(entries):
            held = np.flatnonzero(np.isin(entry.slots // self.block_size, self.blocks))
            slots = entry.slots[held]
            rows = torch.tensor([row[block] for block in (slots // self.block_size).tolist()], dtype=torch.long)
            offsets = torch.from_numpy((slots % self.block_size).astype(np.int64))
            for name, tensor in self.tensors.items():
                tensor[rows, :, offsets] = entry.tensors[name][torch.from_numpy(held)]
