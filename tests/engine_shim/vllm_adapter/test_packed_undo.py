"""The undo ring of packed memory leads back to every state that it promises, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.engine_shim.vllm.kv_cache import PackedCache
from checkengine.engine_shim.vllm.packed_undo import PackedUndo

LAYERS, BLOCKS, HEADS, SIZE, DIM = 2, 6, 2, 32, 4
GROUPS = BLOCKS * SIZE // 16
GROUP_BYTES = 2 * 16 * LAYERS * HEADS * DIM * 4


def write(keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Keys lie by number and then by slot, values by slot: as vLLM's kernels have them."""
    flat, dims = cache.view(len(cache), cache.shape[1], -1), torch.arange(DIM)
    for index, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, SIZE)
        flat[block][:, dims * SIZE + offset] = keys[index]
        flat[block][:, SIZE * DIM + offset * DIM + dims] = values[index]


def memory(dtype: torch.dtype = torch.float32) -> PackedCache:
    generator = torch.Generator().manual_seed(0)
    return PackedCache(
        [torch.randn(BLOCKS, HEADS, SIZE, 2 * DIM, generator=generator).to(dtype) for _ in range(LAYERS)], write
    )


def overwrite(cache: PackedCache, slots: np.ndarray) -> None:
    shape = (len(slots), LAYERS, HEADS, DIM)
    cache.write_slots(slots, {"full.key": torch.randn(shape), "full.value": torch.randn(shape)})


def everything(cache: PackedCache) -> dict[str, torch.Tensor]:
    return cache.image(np.arange(BLOCKS, dtype=np.int32)).tensors


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(8, 3 * GROUPS),
    steps=st.integers(1, 30),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_each_state_from_the_first_step_on_comes_back_byte_for_byte(
    seed: int, groups: int, steps: int, dtype: torch.dtype
) -> None:
    """Decodes that fill a group slot by slot, chunks, whole blocks, the same slot twice, in any order."""
    random = np.random.default_rng(seed)
    cache = memory(dtype)
    undo = PackedUndo(cache, steps, groups * GROUP_BYTES)
    states, cursor = [], 0
    for step in range(40):
        states.append(everything(cache))
        for _ in range(random.integers(1, 3)):
            kind = random.integers(4)
            if kind == 0:
                slots = random.permutation(BLOCKS * SIZE)[: random.integers(1, 6)]
            elif kind == 1:
                first = random.integers(BLOCKS * SIZE - 20)
                slots = np.arange(first, first + random.integers(1, 20))
            else:
                slots = np.array([cursor, (cursor + 70) % (BLOCKS * SIZE)])
                cursor = (cursor + 1) % (BLOCKS * SIZE)
            undo.save(step, slots.astype(np.int32))
            overwrite(cache, slots.astype(np.int32))
        if random.integers(25) == 0:
            cache.layers[0].fill_(random.normal())
            undo.clear(step + 1)
    image = cache.image(np.arange(BLOCKS, dtype=np.int32))
    assert undo.lost == 0
    for step in range(undo.first_step, 40):
        before = image.undo(undo.entries(step))
        for name, tensor in states[step].items():
            assert torch.equal(before.tensors[name], tensor), (step, name)


def test_a_ring_with_room_keeps_as_many_steps_as_were_asked_for() -> None:
    cache = memory()
    undo = PackedUndo(cache, 20, 64 * GROUP_BYTES)
    for step in range(50):
        undo.save(step, np.array([step, step + 64], np.int32))
    assert undo.first_step == 30
    assert undo._head == 8, "two sequences of fifty steps lie in eight groups"


def test_a_step_that_is_larger_than_the_ring_is_lost_and_what_comes_after_is_kept() -> None:
    cache = memory()
    undo = PackedUndo(cache, 20, 4 * GROUP_BYTES)
    undo.save(0, np.array([3], np.int32))
    undo.save(1, np.arange(BLOCKS * SIZE, dtype=np.int32))
    overwrite(cache, np.arange(BLOCKS * SIZE, dtype=np.int32))
    before = everything(cache)
    undo.save(2, np.array([3], np.int32))
    overwrite(cache, np.array([3], np.int32))
    assert (undo.lost, undo.first_step) == (1, 2)
    back = cache.image(np.arange(BLOCKS, dtype=np.int32)).undo(undo.entries(0))
    assert all(torch.equal(back.tensors[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("slot", [-1, BLOCKS * SIZE])
def test_a_slot_outside_the_memory_costs_the_history_and_raises_nothing(slot: int) -> None:
    undo = PackedUndo(memory(), 20, 64 * GROUP_BYTES)
    undo.save(0, np.array([slot], np.int32))
    assert (undo.lost, undo.first_step, undo.entries(0)) == (1, 1, [])


def test_only_slots_of_the_blocks_that_are_asked_for_are_copied() -> None:
    undo = PackedUndo(memory(), 20, 64 * GROUP_BYTES)
    undo.save(0, np.array([5, 40, 70], np.int32))
    (entry,) = undo.entries(0, np.array([1], np.int32), SIZE)
    assert entry.slots.tolist() == [40]
    assert entry.tensors["full.key"].shape == (1, LAYERS, HEADS, DIM)
