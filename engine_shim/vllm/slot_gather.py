"""Copies slots out of packed KV memory in one pass over all layers; the engine waits for it at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba import njit
from numba.typed import List
from numpy.typing import NDArray


def layer_list(layers: Sequence[NDArray[Any]]) -> Any:
    """The layers' memory, (blocks, heads, run) each, as the compiled loop takes it."""
    held = List()
    for layer in layers:
        held.append(layer)
    return held


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def gather_slots(layers: Any, slots: Any, block_size: int, places: Any, out: Any) -> None:
    """Into `out` (slots, layers, heads, dim); `places` (block_size, dim) tells where a slot's numbers lie in a run."""
    for layer in range(len(layers)):
        memory = layers[layer]
        for index in range(slots.shape[0]):
            block, offset = slots[index] // block_size, slots[index] % block_size
            for head in range(memory.shape[1]):
                for item in range(places.shape[1]):
                    out[index, layer, head, item] = memory[block, head, places[offset, item]]
