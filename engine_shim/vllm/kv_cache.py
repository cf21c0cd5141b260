"""vLLM's paged KV memory on a CPU, whose slots lie packed in an order that only its kernels know.

The order is learned: numbers are written through vLLM's own writer, and looked for. So every read and write of ours
follows whatever layout the installed version has for this instruction set and dtype, or says that it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.vllm.slot_gather import gather_slots, layer_list
from checkengine.guards.errors import UserError
from checkengine.replay.memory import MemoryImage
from checkengine.replay.slot_copy import INTEGERS

Ints = NDArray[np.int32]
DIGITS = 16
"""Numbers below it are exact in every dtype of a cache, float8 too."""
KEY, VALUE = "full.key", "full.value"
GROUP = "full"


class KVMemoryError(UserError):
    """The KV memory of this engine cannot be read or written slot by slot."""


class Writer(Protocol):
    def __call__(self, keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
        """Write (slots, heads, dim) into one layer's cache through the engine's own writer."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the numbers of a slot lie inside the run of one block and head; shape (block_size, dim) each."""

    keys: Ints
    values: Ints


@dataclass(frozen=True, slots=True)
class CacheShape:
    block_size: int
    heads: int
    dim: int
    dtype: torch.dtype

    @property
    def run(self) -> int:
        """Numbers of one block and head, keys and values."""
        return 2 * self.block_size * self.dim


def learn_places(shape: CacheShape, write: Writer) -> Places:
    """KVMemoryError where the writer does not put each number of a slot at one place of its own."""
    keys = learned(shape, lambda cache, numbers, slots: write(numbers, torch.zeros_like(numbers), cache, slots))
    values = learned(shape, lambda cache, numbers, slots: write(torch.zeros_like(numbers), numbers, cache, slots))
    if np.intersect1d(keys, values).size:
        raise KVMemoryError("keys and values share memory in this engine's KV cache: it cannot be captured")
    return Places(keys, values)


def learned(shape: CacheShape, write: Any) -> Ints:
    """Each number's index, told digit by digit."""
    count = shape.block_size * shape.dim
    index = np.arange(1, count + 1).reshape(shape.block_size, 1, shape.dim)
    found = np.zeros(shape.run, np.int64)
    slots = torch.arange(shape.block_size)
    scale = 1
    while scale <= count:
        digit = np.broadcast_to(index // scale % DIGITS, (shape.block_size, shape.heads, shape.dim))
        cache = torch.zeros((1, shape.heads, shape.block_size, 2 * shape.dim), dtype=shape.dtype)
        write(cache, torch.from_numpy(digit.copy()).to(shape.dtype), slots)
        found += scale * cache.view(shape.heads, -1)[0].to(torch.float32).round().to(torch.int64).numpy()
        scale *= DIGITS
    places = np.full(count, -1, np.int64)
    written = np.flatnonzero(found)
    if len(written) != count or len(np.unique(found[written])) != count or found.max() != count:
        raise KVMemoryError("the KV cache's writer does not put a slot's numbers at places of their own")
    places[found[written] - 1] = written
    return places.reshape(shape.block_size, shape.dim).astype(np.int32)


class PackedCache:
    """The caches of all layers, tensors of shape (blocks, heads, block_size, 2 · dim), layer after layer.

    Images and slots have the replay's shapes: (blocks, layers, block_size, heads, dim) and (slots, layers, heads, dim).
    """

    def __init__(self, layers: Sequence[torch.Tensor], write: Writer, places: Places | None = None) -> None:
        first = layers[0]
        blocks, heads, size, width = first.shape
        if any(layer.shape != first.shape or layer.dtype != first.dtype for layer in layers):
            raise KVMemoryError("layers of this model differ in the shape of their KV cache: it cannot be captured yet")
        if first.dtype.itemsize not in INTEGERS or not first.dtype.is_floating_point or width % 2:
            raise KVMemoryError(f"a KV cache of {first.dtype} cannot be captured yet")
        if any(not layer.is_contiguous() or layer.device.type != "cpu" for layer in layers):
            raise KVMemoryError("only a KV cache in CPU memory can be captured yet")
        self.layers = list(layers)
        self.blocks = blocks
        self.shape = CacheShape(size, heads, width // 2, first.dtype)
        self.write = write
        self.places = places or learn_places(self.shape, write)
        self.runs = layer_list([bits(layer, blocks, heads, self.shape.run) for layer in layers])

    @property
    def block_bytes(self) -> int:
        return sum(layer[0].nbytes for layer in self.layers)

    def like(self, layers: Sequence[torch.Tensor]) -> PackedCache:
        """Other memory of the same layout."""
        return PackedCache(layers, self.write, self.places)

    def read_slots(self, slots: Ints) -> dict[str, torch.Tensor]:
        """Copies; slots outside the memory are refused with IndexError."""
        if len(slots) and (int(slots.min()) < 0 or int(slots.max()) >= self.blocks * self.shape.block_size):
            raise IndexError(f"a slot lies outside the {self.blocks} blocks of the KV cache")
        shape = (len(slots), len(self.layers), self.shape.heads, self.shape.dim)
        found = {}
        for name, places in ((KEY, self.places.keys), (VALUE, self.places.values)):
            out = torch.empty(shape, dtype=self.shape.dtype)
            gather_slots(self.runs, slots, self.shape.block_size, places, out.view(self.integer).numpy())
            found[name] = out
        return found

    def pages(self, layer: int, blocks: torch.Tensor) -> dict[str, torch.Tensor]:
        """One layer's blocks, copied: "key" and "value" of shape (blocks, block_size, heads, dim)."""
        runs = self.layers[layer].view(self.blocks, self.shape.heads, self.shape.run)[blocks]
        shape = (len(blocks), self.shape.heads, self.shape.block_size, self.shape.dim)
        found = {}
        for name, places in (("key", self.places.keys), ("value", self.places.values)):
            own = runs[:, :, torch.from_numpy(places.astype(np.int64)).flatten()]
            found[name] = own.view(shape).transpose(1, 2).contiguous()
        return found

    def packed(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """One layer's memory that holds these pages; shapes as `pages` gives them."""
        blocks, size, heads, dim = keys.shape
        cache = torch.zeros((blocks, heads, size, 2 * dim), dtype=self.shape.dtype)
        slots = torch.arange(blocks * size)
        self.write(keys.flatten(0, 1).contiguous(), values.flatten(0, 1).contiguous(), cache, slots)
        return cache

    def image(self, blocks: Ints) -> MemoryImage:
        """Copy of whole blocks; numbers outside the memory are left out."""
        size = self.shape.block_size
        held = blocks[(blocks >= 0) & (blocks < self.blocks)].astype(np.int32)
        slots = (held[:, None] * size + np.arange(size)).astype(np.int32).ravel()
        tensors = {
            name: tensor.view(len(held), size, *tensor.shape[1:]).transpose(1, 2).contiguous()
            for name, tensor in self.read_slots(slots).items()
        }
        return MemoryImage(size, held, tensors, {GROUP: list(range(len(self.layers)))})

    def write_slots(
        self, slots: Ints, tensors: Mapping[str, torch.Tensor], layers: Sequence[int] | None = None
    ) -> None:
        """Through the engine's own writer; shapes as `read_slots` gives them."""
        if not len(slots):
            return
        where = torch.from_numpy(slots.astype(np.int64))
        for index in range(len(self.layers)) if layers is None else layers:
            keys, values = (tensors[name][:, index].to(self.shape.dtype).contiguous() for name in (KEY, VALUE))
            self.write(keys, values, self.layers[index], where)

    def fill_slots(self, slots: Ints, pattern: float, layers: Sequence[int] | None = None) -> None:
        if not len(slots):
            return
        where = torch.from_numpy(slots.astype(np.int64))
        full = torch.full((len(slots), self.shape.heads, self.shape.dim), pattern, dtype=self.shape.dtype)
        for index in range(len(self.layers)) if layers is None else layers:
            self.write(full, full.clone(), self.layers[index], where)

    @property
    def integer(self) -> torch.dtype:
        return INTEGERS[self.shape.dtype.itemsize]


def bits(layer: torch.Tensor, blocks: int, heads: int, run: int) -> NDArray[Any]:
    """A view as integers, shape (blocks, heads, run)."""
    found: NDArray[Any] = layer.view(INTEGERS[layer.element_size()]).view(blocks, heads, run).numpy()
    return found
