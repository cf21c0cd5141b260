"""KV memory whose layout is learned through its writer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from checkengine.engine_shim.vllm.kv_cache import KEY, VALUE, KVMemoryError, PackedCache

LAYERS, BLOCKS, HEADS, SIZE, DIM = 3, 5, 2, 32, 8


def packed_writer(keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Keys lie transposed inside a block, values in pairs of tokens, as on CPUs with tile instructions."""
    blocks, heads, size, width = cache.shape
    flat = cache.view(blocks, heads, -1)
    dims = torch.arange(width // 2)
    for index, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, size)
        flat[block][:, dims * size + offset] = keys[index]
        flat[block][:, size * (width // 2) + offset // 2 * width + dims * 2 + offset % 2] = values[index]


def cache_of(dtype: torch.dtype = torch.float32) -> PackedCache:
    layers = [torch.randn(BLOCKS, HEADS, SIZE, 2 * DIM).to(dtype) for _ in range(LAYERS)]
    return PackedCache(layers, packed_writer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_the_engine_writes_is_read_back_whatever_its_layout(dtype: torch.dtype) -> None:
    cache = cache_of(dtype)
    slots = np.array([0, 31, 32, 77, 159], np.int32)
    told = {name: torch.randn(len(slots), LAYERS, HEADS, DIM).to(dtype) for name in (KEY, VALUE)}
    cache.write_slots(slots, told)
    found = cache.read_slots(slots)
    assert all(torch.equal(found[name], told[name]) for name in told)


def test_an_image_holds_whole_blocks_and_leaves_out_what_is_not_there() -> None:
    cache = cache_of()
    image = cache.image(np.array([1, 4, 9], np.int32))
    assert image.blocks.tolist() == [1, 4]
    assert tuple(image.tensors[KEY].shape) == (2, LAYERS, SIZE, HEADS, DIM)
    slot = cache.read_slots(np.array([4 * SIZE + 3], np.int32))
    assert torch.equal(image.tensors[VALUE][1, :, 3], slot[VALUE][0])


def test_a_fill_touches_its_slots_and_layers_only() -> None:
    cache = cache_of()
    before = cache.read_slots(np.arange(BLOCKS * SIZE, dtype=np.int32))
    cache.fill_slots(np.array([40], np.int32), 64.0, [1])
    after = cache.read_slots(np.arange(BLOCKS * SIZE, dtype=np.int32))
    for name in (KEY, VALUE):
        changed = (before[name] != after[name]).flatten(2).any(2).nonzero().tolist()
        assert changed == [[40, 1]]
        assert (after[name][40, 1] == 64).all()


def test_a_slot_outside_the_memory_is_refused() -> None:
    with pytest.raises(IndexError, match="5 blocks"):
        cache_of().read_slots(np.array([BLOCKS * SIZE], np.int32))


def test_a_writer_that_loses_numbers_is_found_out() -> None:
    def lossy(keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
        packed_writer(keys, values, cache, slots)
        cache.view(len(cache), cache.shape[1], -1)[:, :, 7] = 0

    with pytest.raises(KVMemoryError, match="places of their own"):
        PackedCache([torch.zeros(1, HEADS, SIZE, 2 * DIM)], lossy)


def test_layers_of_different_shapes_are_refused_in_words() -> None:
    layers = [torch.zeros(2, HEADS, SIZE, 2 * DIM), torch.zeros(2, HEADS, SIZE, 4 * DIM)]
    with pytest.raises(KVMemoryError, match="differ"):
        PackedCache(layers, packed_writer)
