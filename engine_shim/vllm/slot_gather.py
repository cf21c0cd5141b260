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


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def plan_groups(slots: Any, saved_in: Any, head: int, oldest: int, group: int, places: Any, fresh: Any) -> int:
    """Which group holds each slot's bytes, into `places`, and the first slots of those groups that must be copied for
    it, into `fresh`, numbered from `head` on. Their number; -1 where `fresh` has no room for them.

    `saved_in`: by slot, the group that holds what it holds now; only those from `oldest` on count. The slots themselves
    are about to be written, so none holds theirs any more."""
    count = 0
    for index in range(slots.shape[0]):
        slot = slots[index]
        if saved_in[slot] < oldest:
            if count == fresh.shape[0]:
                return -1
            first = slot - slot % group
            for each in range(first, first + group):
                saved_in[each] = head + count
            fresh[count] = first
            count += 1
        places[index] = saved_in[slot]
    for index in range(slots.shape[0]):
        saved_in[slots[index]] = -1
    return count


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def gather_groups(layers: Any, fresh: Any, block_size: int, begins: Any, lengths: Any, out: Any, head: int) -> None:
    """Copy groups of slots as they lie into `out` (groups, layers, heads, run) from its entry `head` on, round and
    round; `begins` and `lengths` (groups of a block, stretches) tell where a group lies in a block's run."""
    group = block_size // begins.shape[0]
    for index in range(fresh.shape[0]):
        block, part = fresh[index] // block_size, fresh[index] % block_size // group
        entry = (head + index) % out.shape[0]
        for layer in range(len(layers)):
            memory = layers[layer]
            for head_index in range(memory.shape[1]):
                run, to = memory[block, head_index], out[entry, layer, head_index]
                end = 0
                for stretch in range(begins.shape[1]):
                    begin, length = begins[part, stretch], lengths[part, stretch]
                    to[end : end + length] = run[begin : begin + length]
                    end += length
