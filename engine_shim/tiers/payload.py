"""A KV block on its way: its bytes, and the seal that was made before they left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from checkengine.detectors.seal import Cells, Seal, SealError, hash_tensor

Bits = NDArray[Any]
"""Elements' bits as unsigned numbers of their width: shape (layers, tokens, heads, dim)."""
BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
_LENGTH = 8


class SealedLater:
    """A seal that another thread makes. A bare lock: an event costs as much as a twentieth of a block's copy."""

    __slots__ = ("_lock", "_made", "_work")

    def __init__(self, work: Callable[[], Seal]) -> None:
        self._work: Callable[[], Seal] | None = work
        self._made: Seal | Exception = SealError("not made")
        self._lock = threading.Lock()
        self._lock.acquire()

    def make(self) -> None:
        """On the sealing thread, once."""
        assert self._work is not None
        try:
            self._made = self._work()
        except Exception as error:
            self._made = error
        finally:
            self._work = None
            self._lock.release()

    def wait(self) -> Seal:
        """Raises what making it raised."""
        with self._lock:
            if isinstance(self._made, Exception):
                raise self._made
            return self._made


@dataclass(frozen=True, slots=True)
class Payload:
    tensors: Mapping[str, Bits]
    sealed: Seal | SealedLater
    """Later where the block is sealed on another core while the next one is copied."""

    @property
    def seal(self) -> Seal:
        """Waits where it is still being made."""
        return self.sealed.wait() if isinstance(self.sealed, SealedLater) else self.sealed

    @property
    def size(self) -> int:
        """Bytes, the seal's not counted."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def to_bytes(self) -> bytes:
        seal = self.seal.to_bytes()
        content: bytes = safetensors.numpy.save(
            {name: np.ascontiguousarray(tensor) for name, tensor in self.tensors.items()}
        )
        return len(seal).to_bytes(_LENGTH, "little") + seal + content

    @staticmethod
    def from_bytes(data: bytes) -> Payload:
        """SealError where the bytes are not what `to_bytes` writes."""
        end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        if len(data) < _LENGTH or end > len(data):
            raise SealError("a block that was cut off")
        seal = Seal.from_bytes(data[_LENGTH:end])
        try:
            return Payload(safetensors.numpy.load(data[end:]), seal)
        except (SafetensorError, ValueError, KeyError) as error:
            raise SealError(f"not a block: {type(error).__name__}") from None


def block_bits(memory: Mapping[str, torch.Tensor], block: int) -> dict[str, Bits]:
    """Views of one block of paged memory in CPU memory: writing to them writes to the memory."""
    return {name: tensor[block].view(BITS[tensor.element_size()]).numpy() for name, tensor in memory.items()}


def cells_of(tensors: Mapping[str, Bits]) -> Cells:
    return {name: hash_tensor(tensor) for name, tensor in tensors.items()}
