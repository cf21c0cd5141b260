from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.replay.memory import MemoryImage
from checkengine.replay.undo import UndoRing

BLOCKS, BLOCK_SIZE, LAYERS, HEADS, DIM = 4, 4, 2, 1, 3


def random_memory(seed: int) -> MemoryImage:
    generator = torch.Generator().manual_seed(seed)
    shape = (BLOCKS, LAYERS, BLOCK_SIZE, HEADS, DIM)
    tensors = {f"all.{part}": torch.randn(shape, generator=generator) for part in ("key", "value")}
    tensors["all.key"].view(torch.int32)[0, 0, 0, 0, 0] = 0x7FC0BEEF
    return MemoryImage(BLOCK_SIZE, np.arange(BLOCKS, dtype=np.int32), tensors, {"all": range(LAYERS)})


def gather(memory: MemoryImage, slots: np.ndarray) -> dict[str, torch.Tensor]:
    rows, offsets = torch.from_numpy(slots // BLOCK_SIZE).long(), torch.from_numpy(slots % BLOCK_SIZE).long()
    return {name: tensor[rows, :, offsets] for name, tensor in memory.tensors.items()}


def scatter(memory: MemoryImage, slots: np.ndarray, value: float) -> None:
    rows, offsets = torch.from_numpy(slots // BLOCK_SIZE).long(), torch.from_numpy(slots % BLOCK_SIZE).long()
    for tensor in memory.tensors.values():
        tensor[rows, :, offsets] = value


def bits(memory: MemoryImage) -> list[list[int]]:
    return [tensor.view(torch.int32).flatten().tolist() for tensor in memory.tensors.values()]


slots_of_a_step = st.lists(st.integers(0, BLOCKS * BLOCK_SIZE - 1), min_size=0, max_size=6, unique=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(slots_of_a_step, max_size=2), min_size=1, max_size=14), st.integers(1, 12), st.integers(1, 20))
def test_undo_restores_memory_bit_for_bit_from_its_first_step_on(
    schedule: list[list[list[int]]], steps: int, slots_held: int
) -> None:
    slot_bytes = 2 * LAYERS * HEADS * DIM * 4
    ring = UndoRing(steps=steps, bytes=slots_held * slot_bytes)
    memory = random_memory(7)
    before = {}
    for step, writes in enumerate(schedule):
        before[step] = bits(memory)
        for number, slots in enumerate(writes):
            array = np.array(slots, np.int32)
            ring.save(step, array, gather(memory, array))
            scatter(memory, array, step + number / 10)
    for step in range(ring.first_step, len(schedule)):
        assert bits(memory.undo(ring.entries(step))) == before[step]


def test_the_undo_ring_reaches_back_as_many_steps_as_it_was_given() -> None:
    ring, memory = UndoRing(steps=5, bytes=1 << 20), random_memory(1)
    slots = np.array([3, 9], np.int32)
    for step in range(20):
        ring.save(step, slots, gather(memory, slots))
    assert ring.first_step == 15
    assert [entry.step for entry in ring.entries(0)] == [15, 16, 17, 18, 19]
    assert ring.lost == 0


def test_a_step_larger_than_the_undo_ring_is_counted_and_ends_what_is_known() -> None:
    ring, memory = UndoRing(steps=5, bytes=4 * 2 * LAYERS * HEADS * DIM * 4), random_memory(1)
    small, large = np.array([1], np.int32), np.arange(5, dtype=np.int32)
    ring.save(0, small, gather(memory, small))
    ring.save(1, large, gather(memory, large))
    assert ring.lost == 1
    assert ring.first_step == 2
    assert ring.entries(0) == []
    ring.save(2, small, gather(memory, small))
    assert [entry.step for entry in ring.entries(0)] == [2]


def test_a_wrong_shape_never_reaches_the_engine_as_an_error() -> None:
    ring, memory = UndoRing(), random_memory(1)
    slots = np.array([1, 2], np.int32)
    ring.save(0, slots, gather(memory, slots))
    ring.save(1, slots, {"all.key": torch.zeros(9)})
    assert ring.lost == 1
    assert ring.first_step == 2


def test_entries_are_copies_that_later_saves_do_not_change() -> None:
    ring, memory = UndoRing(steps=1, bytes=2 * 2 * LAYERS * HEADS * DIM * 4), random_memory(1)
    slots = np.array([1, 2], np.int32)
    ring.save(0, slots, gather(memory, slots))
    kept = ring.entries(0)[0]
    copy = kept.tensors["all.key"].clone()
    scatter(memory, slots, 5.0)
    ring.save(1, slots, gather(memory, slots))
    assert torch.equal(kept.tensors["all.key"], copy)


@settings(max_examples=30, deadline=None)
@given(st.lists(slots_of_a_step, min_size=1, max_size=8))
def test_saving_straight_out_of_paged_memory_keeps_the_same_bits(schedule: list[list[int]]) -> None:
    direct, copied, memory = UndoRing(bytes=1 << 16), UndoRing(bytes=1 << 16), random_memory(3)
    for step, slots in enumerate(schedule):
        array = np.array(slots, np.int32)
        direct.save_from(step, array, memory.tensors)
        copied.save(step, array, gather(memory, array))
        scatter(memory, array, float(step))
    assert [(e.step, e.slots.tolist()) for e in direct.entries(0)] == [
        (e.step, e.slots.tolist()) for e in copied.entries(0)
    ]
    for mine, other in zip(direct.entries(0), copied.entries(0), strict=True):
        for name, tensor in other.tensors.items():
            assert torch.equal(mine.tensors[name].view(torch.int32), tensor.view(torch.int32))
    assert direct.lost == 0


def test_half_precision_memory_is_saved_bit_for_bit() -> None:
    memory = torch.randn(BLOCKS, LAYERS, BLOCK_SIZE, HEADS, DIM).bfloat16()
    memory[1, 0, 2] = float("nan")
    ring = UndoRing(bytes=1 << 16)
    ring.save_from(0, np.array([6, 1], np.int32), {"a.key": memory})
    kept = ring.entries(0)[0].tensors["a.key"]
    assert kept.dtype == torch.bfloat16
    assert torch.equal(kept.view(torch.int16), memory[[1, 0], :, [2, 1]].view(torch.int16))


def test_a_slot_outside_the_memory_is_never_read() -> None:
    ring, memory = UndoRing(bytes=1 << 16), random_memory(3)
    ring.save_from(0, np.array([BLOCKS * BLOCK_SIZE], np.int32), memory.tensors)
    assert (ring.lost, ring.entries(0), ring.first_step) == (1, [], 1)


def test_a_trigger_copies_only_the_slots_of_the_blocks_that_it_needs() -> None:
    ring, memory = UndoRing(bytes=1 << 16), random_memory(3)
    for step, slots in enumerate([[0, 5, 9], [4, 6], [12]]):
        ring.save(step, np.array(slots, np.int32), gather(memory, np.array(slots, np.int32)))
    some = ring.entries(0, np.array([1, 3], np.int32), BLOCK_SIZE)
    assert [entry.slots.tolist() for entry in some] == [[5], [4, 6], [12]]
    whole = ring.entries(0)
    assert torch.equal(some[0].tensors["all.value"], whole[0].tensors["all.value"][1:2])
