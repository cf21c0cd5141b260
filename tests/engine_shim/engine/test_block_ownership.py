"""Every block is in one state at every moment, whatever requests, preemptions, cancels and quarantines do."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from checkengine.engine_shim.engine.block_pool import BlockPool, BlockState
from checkengine.engine_shim.engine.request import GenerationRequest
from checkengine.engine_shim.engine.scheduler import Scheduler
from checkengine.engine_shim.engine.sequence import LiveSequence

BLOCK = 4
WIDTH = 12


def check_ownership(scheduler: Scheduler) -> None:
    pool = scheduler.pool
    held = Counter(block for sequence in scheduler.running for block in sequence.blocks)
    states = Counter(pool.owner(block).state for block in range(pool.blocks))
    assert states[BlockState.FREE] == pool.free
    assert states[BlockState.CACHED] == scheduler.cache.evictable
    for block in range(pool.blocks):
        owner = pool.owner(block)
        assert (owner.state is BlockState.OWNED) == bool(owner.handles)
        assert len(owner.handles) == held[block]
    for sequence in scheduler.running:
        assert all(sequence.handle in pool.owner(block).handles for block in sequence.blocks)
        assert len(set(sequence.blocks)) == len(sequence.blocks)


def check_writes(scheduler: Scheduler, slots: np.ndarray, handles: np.ndarray) -> None:
    """A written slot belongs to its writer alone: shared blocks are read only."""
    assert len(set(slots.tolist())) == len(slots)
    for slot, handle in zip(slots.tolist(), handles.tolist(), strict=True):
        assert scheduler.pool.owner(slot // BLOCK).handles == (handle,)


class Traffic:
    """Drives a scheduler as the engine does, with made-up tokens."""

    def __init__(self, blocks: int) -> None:
        self.released = 0
        self.scheduler = Scheduler(
            BlockPool(blocks),
            block_size=BLOCK,
            token_budget=16,
            max_rows=5,
            width=WIDTH,
            prefix_cache=True,
            on_pressure=self.release,
        )
        self.live: list[LiveSequence] = []
        self.tables: dict[int, list[int]] = {}
        self.step = 0
        self.handle = 0

    def release(self) -> bool:
        blocks = self.scheduler.pool.quarantined
        self.scheduler.pool.pardon(blocks)
        return bool(blocks)

    def submit(self, prompt: list[int]) -> None:
        request = GenerationRequest(f"r{self.handle}", prompt)
        sequence = LiveSequence(self.handle, request, list(prompt), frozenset())
        self.handle += 1
        self.live.append(sequence)
        self.scheduler.add(sequence)

    def end(self, index: int, *, poison: bool) -> None:
        sequence = self.live.pop(index % len(self.live))
        if poison:
            self.scheduler.poison(sequence)
        self.scheduler.remove(sequence)

    def run_step(self, token: int) -> int:
        """Tokens computed."""
        scheduled = self.scheduler.schedule(self.step, "paged")
        check_ownership(self.scheduler)
        if scheduled is None:
            return 0
        batch = scheduled.batch
        assert 0 < len(batch.token_ids) <= 16
        check_writes(self.scheduler, batch.slots, np.repeat(batch.handles, batch.query_lengths))
        self._follow(batch)
        self.step += 1
        for sequence, count, samples in zip(scheduled.sequences, batch.query_lengths, batch.samples, strict=True):
            self.scheduler.computed(sequence, int(count))
            if samples:
                sequence.tokens.append(token)
            if len(sequence.tokens) >= WIDTH * BLOCK - 1:
                self.live.remove(sequence)
                self.scheduler.remove(sequence)
        return len(batch.token_ids)

    def _follow(self, batch) -> None:  # type: ignore[no-untyped-def]
        """A reader of the records alone knows every block table."""
        for handle in batch.ended:
            del self.tables[handle]
        for start in batch.begun:
            self.tables[start.handle] = []
        for handle, index, block in batch.block_changes.tolist():
            table = self.tables.setdefault(handle, [])
            del table[index:]
            if block >= 0:
                table.append(block)
        for row, handle in enumerate(batch.handles.tolist()):
            blocks = batch.tables[row][batch.tables[row] >= 0].tolist()
            assert self.tables[handle] == blocks
        everything = batch.all_tables()
        ends = np.cumsum(everything.counts)
        for handle, end, count in zip(everything.handles.tolist(), ends, everything.counts, strict=True):
            assert self.tables[handle] == everything.blocks[end - count : end].tolist()


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=20)
moves = st.one_of(
    st.tuples(st.just("submit"), prompts),
    st.tuples(st.just("step"), st.integers(0, 2)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("poison"), st.integers(0, 9)),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(WIDTH, 20), st.lists(moves, max_size=60))
def test_every_slot_has_one_known_owner_under_any_traffic(blocks: int, steps: list[tuple[str, object]]) -> None:
    traffic = Traffic(blocks)
    for kind, value in steps:
        if kind == "submit":
            traffic.submit(value)  # type: ignore[arg-type]
        elif kind == "step":
            traffic.run_step(value)  # type: ignore[arg-type]
        elif traffic.live:
            traffic.end(value, poison=kind == "poison")  # type: ignore[arg-type]
        check_ownership(traffic.scheduler)
    for _ in range(2000):
        if not traffic.live:
            break
        assert traffic.run_step(1) > 0
    assert not traffic.live
    traffic.release()
    assert traffic.scheduler.pool.free + traffic.scheduler.cache.evictable == blocks


def test_no_request_is_lost_and_preempted_ones_keep_what_they_sampled() -> None:
    traffic = Traffic(WIDTH)
    for i in range(5):
        traffic.submit([i % 3] * 9)
    everyone = list(traffic.live)
    lengths = {sequence.handle: 0 for sequence in everyone}
    while traffic.live:
        traffic.run_step(1)
        for sequence in everyone:
            assert len(sequence.tokens) >= lengths[sequence.handle]
            lengths[sequence.handle] = len(sequence.tokens)
    assert traffic.scheduler.preemptions > 0
    assert all(length == WIDTH * BLOCK - 1 for length in lengths.values())


def test_a_block_gets_a_new_generation_each_time_it_is_handed_out() -> None:
    pool = BlockPool(1)
    for generation in (1, 2, 3):
        block = pool.take(handle=generation)
        assert pool.owner(block).generation == generation
        pool.release(block, generation)


def test_decode_rows_go_on_while_a_long_prompt_is_read_in_chunks() -> None:
    traffic = Traffic(30)
    traffic.submit([1, 2])
    traffic.run_step(1)
    traffic.submit([2] * 40)
    before = len(traffic.live[0].tokens)
    traffic.run_step(1)
    traffic.run_step(1)
    assert len(traffic.live[0].tokens) == before + 2
    assert 0 < traffic.live[1].computed < 40
