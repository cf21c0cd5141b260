"""Blocks and slots are copied, restored and filled as whole things."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from checkengine.engine_shim.engine.kv_memory import LOUD, CompactMemory, KVMemory, layout_of
from checkengine.replay.executor import ReplayError
from checkengine.replay.memory import UndoEntry

LAYOUT = layout_of({0: (2, 8, 8), 1: (1, 8, 4), 2: (2, 8, 8)}, torch.float32)


def make_memory() -> KVMemory:
    memory = KVMemory(LAYOUT, 10, 4)
    memory.fill_garbage()
    return memory


def test_layers_of_one_shape_share_a_tensor_with_blocks_in_front() -> None:
    memory = make_memory()
    assert memory.tensors["kv0.key"].shape == (10, 2, 4, 2, 8)
    assert memory.tensors["kv1.value"].shape == (10, 1, 4, 1, 4)
    assert memory.bytes == 40 * LAYOUT.bytes_per_token()


def test_fresh_memory_is_finite_garbage_and_the_same_for_the_same_seed() -> None:
    memory = make_memory()
    for name, tensor in memory.tensors.items():
        assert torch.isfinite(tensor).all()
        assert 4.0 < tensor.std() < 6.0
        assert torch.equal(tensor, make_memory().tensors[name])


def test_loud_memory_holds_one_large_finite_number() -> None:
    memory = make_memory()
    memory.fill_garbage([3], kind="loud")
    assert (memory.tensors["kv1.key"][3] == LOUD).all()
    assert (memory.tensors["kv1.key"][4] != LOUD).all()


def test_a_compact_memory_answers_to_the_recorded_block_numbers() -> None:
    memory = make_memory()
    compact = CompactMemory(memory.image(np.array([7, 2, 9], np.int32)))
    assert compact.locate(np.array([[2, 9, -1], [7, -1, -1]], np.int32)).tolist() == [[1, 2, -1], [0, -1, -1]]
    slots = np.array([2 * 4 + 1, 9 * 4 + 3], np.int32)
    for name, tensor in memory.gather(slots).items():
        assert torch.equal(tensor, compact.gather(slots)[name])


@pytest.mark.parametrize("block", [3, 8, 500])
def test_a_block_outside_a_compact_memory_is_refused_by_number(block: int) -> None:
    compact = CompactMemory(make_memory().image(np.array([7, 2], np.int32)))
    with pytest.raises(ReplayError, match=f"block {block} "):
        compact.locate(np.array([[2, block]], np.int32))


def test_a_copy_of_a_compact_memory_is_its_own() -> None:
    compact = CompactMemory(make_memory().image(np.array([7, 2], np.int32)))
    copy = compact.copy()
    copy.write_slots(np.array([8], np.int32), 0.0)
    assert (copy.gather(np.array([8], np.int32))["kv0.key"] == 0).all()
    assert (compact.gather(np.array([8], np.int32))["kv0.key"] != 0).all()


def test_a_pattern_goes_into_whole_slots_of_the_layers_named() -> None:
    memory = make_memory()
    before = {name: tensor.clone() for name, tensor in memory.tensors.items()}
    memory.write_slots(np.array([5, 30], np.int32), 2.0, layers=[2])
    changed = memory.tensors["kv0.value"] != before["kv0.value"]
    assert changed[1, 1, 1].all()
    assert changed[7, 1, 2].all()
    assert changed.sum() == 2 * 2 * 8
    assert torch.equal(memory.tensors["kv1.key"], before["kv1.key"])


def test_saved_slots_put_an_image_back_as_it_was() -> None:
    memory = make_memory()
    before = memory.image(np.array([1, 7], np.int32))
    slots = np.array([5, 20, 30], np.int32)
    entry = UndoEntry(0, slots, memory.gather(slots))
    memory.write_slots(slots, 2.0)
    after = memory.image(np.array([1, 7], np.int32))
    assert not torch.equal(after.tensors["kv0.key"], before.tensors["kv0.key"])
    for name, tensor in after.undo([entry]).tensors.items():
        assert torch.equal(tensor, before.tensors[name])
