"""Paged KV memory: whole blocks of slots, shared by all layers of one shape.

A slot is `block * block_size + offset`. Blocks come first in every tensor, so that attention reads contiguous runs and
that a block is cloned, a slot saved and a slot restored in one call each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.replay.executor import ReplayError
from checkengine.replay.memory import MemoryImage

Ints = NDArray[np.int32]
Garbage = Literal["recycled", "loud"]

LOUD = 1.0e4
"""Large, finite in every dtype from float16 on, and far outside of what a model writes."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose keys and values have one shape."""

    name: str
    layers: tuple[int, ...]
    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    groups: tuple[KVGroup, ...]
    dtype: torch.dtype

    def bytes_per_token(self) -> int:
        width = sum(len(group.layers) * group.heads * (group.key_dim + group.value_dim) for group in self.groups)
        return width * self.dtype.itemsize

    @classmethod
    def of_image(cls, image: MemoryImage) -> KVLayout:
        names = list(image.layers)
        groups = [
            KVGroup(
                name=name,
                layers=tuple(image.layers[name]),
                heads=image.tensors[f"{name}.key"].shape[3],
                key_dim=image.tensors[f"{name}.key"].shape[4],
                value_dim=image.tensors[f"{name}.value"].shape[4],
            )
            for name in names
        ]
        return cls(tuple(groups), image.tensors[f"{names[0]}.key"].dtype)


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Where one layer's keys and values live: `keys[:, row]` has shape (blocks, block_size, heads, key_dim)."""

    keys: torch.Tensor
    values: torch.Tensor
    row: int


@dataclass(frozen=True, slots=True)
class Places:
    """Memory rows and offsets of some slots, int64, shape (slots,)."""

    rows: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> Places:
        return cls(torch.from_numpy(rows), torch.from_numpy(offsets))


class KVMemory:
    """KV tensors `<group>.key` and `<group>.value` of shape (blocks, layers of the group, block_size, heads, dim)."""

    def __init__(self, layout: KVLayout, blocks: int, block_size: int) -> None:
        self.layout = layout
        self.blocks = blocks
        self.block_size = block_size
        self.tensors: dict[str, torch.Tensor] = {}
        for group in layout.groups:
            shape = (blocks, len(group.layers), block_size, group.heads)
            self.tensors[f"{group.name}.key"] = torch.zeros((*shape, group.key_dim), dtype=layout.dtype)
            self.tensors[f"{group.name}.value"] = torch.zeros((*shape, group.value_dim), dtype=layout.dtype)
        self.layers: dict[int, LayerMemory] = {
            layer: LayerMemory(self.tensors[f"{group.name}.key"], self.tensors[f"{group.name}.value"], row)
            for group in layout.groups
            for row, layer in enumerate(group.layers)
        }

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def fill_garbage(
        self, blocks: Iterable[int] | None = None, *, kind: Garbage = "recycled", scale: float = 5.0, seed: int = 0
    ) -> None:
        """Fill whole blocks, or all, as recycled memory is: finite numbers that nobody of this engine wrote.

        `recycled` is normal noise of standard deviation `scale`, `loud` a large finite constant.
        """
        generator = torch.Generator().manual_seed(seed)
        rows = range(self.blocks) if blocks is None else blocks
        for tensor in self.tensors.values():
            for row in rows:
                if kind == "loud":
                    tensor[row].fill_(LOUD)
                else:
                    tensor[row].normal_(0.0, scale, generator=generator)

    def locate(self, tables: Ints) -> Ints:
        """Memory rows of recorded block numbers; -1 stays -1."""
        return tables

    def nearest(self, tables: Ints) -> Ints:
        """As `locate`, for tables that a planted fault made: a block that is not here stands for one that is, since
        memory outside of ours would end the process."""
        return np.clip(tables, -1, self.blocks - 1).astype(np.int32)

    def places(self, slots: Ints) -> Places:
        """Where slots, under recorded block numbers, lie in memory."""
        rows = self.locate(slots // self.block_size)
        return Places.of(rows.astype(np.int64), (slots % self.block_size).astype(np.int64))

    def write(self, layer: int, places: Places, keys: torch.Tensor, values: torch.Tensor) -> None:
        """The cache writer: keys (tokens, heads, key_dim) and values (tokens, heads, value_dim)."""
        memory = self.layers[layer]
        memory.keys[places.rows, memory.row, places.offsets] = keys
        memory.values[places.rows, memory.row, places.offsets] = values

    def write_slots(self, slots: Ints, pattern: float, layers: Sequence[int] | None = None) -> None:
        """Fill whole slots (keys and values) with a number, in these layers or in all."""
        places = self.places(slots)
        for layer in self.layers if layers is None else layers:
            memory = self.layers[layer]
            count = (len(slots),)
            keys = torch.full(count + memory.keys.shape[3:], pattern, dtype=memory.keys.dtype)
            values = torch.full(count + memory.values.shape[3:], pattern, dtype=memory.values.dtype)
            self.write(layer, places, keys, values)

    def gather(self, slots: Ints) -> dict[str, torch.Tensor]:
        """Copies of whole slots: shape (slots, layers, heads, dim) under each tensor's name."""
        places = self.places(slots)
        return {name: tensor[places.rows, :, places.offsets] for name, tensor in self.tensors.items()}

    def image(self, blocks: Ints) -> MemoryImage:
        """Copy of whole blocks."""
        rows = torch.from_numpy(self.locate(blocks).astype(np.int64))
        tensors = {name: tensor[rows] for name, tensor in self.tensors.items()}
        layers = {group.name: group.layers for group in self.layout.groups}
        return MemoryImage(self.block_size, blocks.astype(np.int32), tensors, layers)


class CompactMemory(KVMemory):
    """Memory that holds some blocks only, under the numbers of the engine that was recorded."""

    def __init__(self, image: MemoryImage, dtype: torch.dtype | None = None) -> None:
        layout = KVLayout.of_image(image)
        layout = KVLayout(layout.groups, dtype or layout.dtype)
        super().__init__(layout, len(image.blocks), image.block_size)
        self.numbers = image.blocks.astype(np.int32).copy()
        self._row = np.full(int(image.blocks.max(initial=-1)) + 2, -1, np.int32)
        self._row[self.numbers] = np.arange(len(self.numbers), dtype=np.int32)
        for name, tensor in self.tensors.items():
            tensor.copy_(image.tensors[name])

    def locate(self, tables: Ints) -> Ints:
        known = self._row[np.clip(tables, -1, len(self._row) - 1)]
        rows = np.where(tables < 0, np.int32(-1), known).astype(np.int32)
        missing = tables[(rows < 0) & (tables >= 0)]
        if missing.size:
            raise ReplayError(
                f"block {int(missing.flat[0])} is not in the captured memory, which holds {self.blocks} blocks; "
                "start the replay at a later step or capture more blocks"
            )
        return rows

    def nearest(self, tables: Ints) -> Ints:
        """The block itself, else the next one up that is held, else the last."""
        order = np.argsort(self.numbers)
        found = np.minimum(np.searchsorted(self.numbers[order], tables), self.blocks - 1)
        return np.where(tables < 0, -1, order[found]).astype(np.int32)

    def copy(self) -> CompactMemory:
        return CompactMemory(self.image(self.numbers))


def layout_of(shapes: Mapping[int, tuple[int, int, int]], dtype: torch.dtype) -> KVLayout:
    """Groups layers of one shape (heads, key_dim, value_dim); groups are named kv0, kv1… in order of appearance."""
    groups: dict[tuple[int, int, int], list[int]] = {}
    for layer in sorted(shapes):
        groups.setdefault(shapes[layer], []).append(layer)
    return KVLayout(
        tuple(KVGroup(f"kv{i}", tuple(layers), *shape) for i, (shape, layers) in enumerate(groups.items())), dtype
    )
