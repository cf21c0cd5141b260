"""Copies slots out of paged memory in one pass; the engine waits for it at every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size in bytes: bits are copied as they are, and numba knows no half types."""


def bits_of(tensor: torch.Tensor, axes: int) -> NDArray[Any]:
    """A view of a contiguous tensor in CPU memory: its first `axes` axes, and all others as one."""
    integers = tensor.view(INTEGERS[tensor.element_size()])
    return integers.view(*tensor.shape[:axes], -1).numpy()


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def copy_slots(memory: Any, slots: Any, block_size: int, storage: Any, begin: int) -> None:
    """`memory` (blocks, layers, block_size, width) into `storage[begin:]` (slots, layers, width).

    Written out: numba's slice assignment costs twice as much on runs this short.
    """
    for index in range(slots.shape[0]):
        block, offset = slots[index] // block_size, slots[index] % block_size
        for layer in range(memory.shape[1]):
            for item in range(memory.shape[3]):
                storage[begin + index, layer, item] = memory[block, layer, offset, item]


def slots_fit(memory: NDArray[Any], slots: NDArray[np.int32], block_size: int) -> bool:
    """The compiled loop does not check bounds."""
    return not len(slots) or (int(slots.min()) >= 0 and int(slots.max()) < memory.shape[0] * block_size)
