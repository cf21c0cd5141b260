"""Who computes how many tokens in the next step.

First come, first served: running sequences decode first, then prefill chunks fill the token budget, then waiting
requests are admitted while blocks last. When blocks run out the sequence that came last gives its blocks back and is
recomputed later; what it has sampled stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from checkengine.engine_shim.engine.batch import PackedBatch
from checkengine.engine_shim.engine.block_pool import BlockPool
from checkengine.engine_shim.engine.block_tables import TableArray, tables_of
from checkengine.engine_shim.engine.prefix_cache import ROOT, PrefixCache, block_id, block_ids
from checkengine.engine_shim.engine.sequence import LiveSequence
from checkengine.guards.step import SequenceStart


@dataclass(slots=True)
class ScheduledStep:
    """Row i of the batch is `sequences[i]`."""

    batch: PackedBatch
    sequences: list[LiveSequence]


class LowerTiers(Protocol):
    """Memory behind the engine's own, for blocks that it has no room for."""

    def __contains__(self, identity: bytes) -> bool: ...

    def keep(self, identity: bytes, block: int, generation: int) -> None:
        """The block is about to be given up."""

    def restore(self, identity: bytes, block: int) -> bool:
        """Write the content of that id into a block of the engine's; False where it has none that is whole."""

    def forget(self, identity: bytes) -> None: ...

    def pin(self, identities: Sequence[bytes]) -> None:
        """They are about to be restored and give way to nothing until the next call."""


class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        token_budget: int,
        max_rows: int,
        width: int,
        prefix_cache: bool,
        on_pressure: Callable[[], bool] = lambda: False,
        tiers: LowerTiers | None = None,
    ) -> None:
        """`width` is the most blocks of one sequence. `on_pressure` is asked for further free blocks before a sequence
        is preempted or has to wait; it says whether it found some."""
        self.pool = pool
        self.cache = PrefixCache(pool, block_size)
        self.block_size = block_size
        self.token_budget = token_budget
        self.use_prefix_cache = prefix_cache
        self._on_pressure = on_pressure
        self._tiers = tiers
        if tiers is not None:
            self.cache.before_evict = lambda identity, block: tiers.keep(identity, block, pool.owner(block).generation)
        self.waiting: deque[LiveSequence] = deque()
        self.running: list[LiveSequence] = []
        self.preemptions = 0
        self._tables = TableArray(max_rows, width)
        self._begun: list[SequenceStart] = []
        self._ended: list[int] = []

    def add(self, sequence: LiveSequence, *, first: bool = False) -> None:
        if first:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)

    def schedule(self, step: int, kernel: str) -> ScheduledStep | None:
        """The next step, with blocks for all its tokens taken; None where nothing can run."""
        counts: dict[LiveSequence, int] = {}
        budget = self._decode(counts, self.token_budget)
        budget = self._prefill(counts, budget)
        self._admit(counts, budget)
        return self._pack(step, kernel, counts) if counts else None

    def remove(self, sequence: LiveSequence) -> None:
        """The sequence is over, wherever it is; its blocks are free or cached."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence, ended=True)
        else:
            self.waiting.remove(sequence)
        if sequence.begun:
            self._ended.append(sequence.handle)

    def poison(self, sequence: LiveSequence) -> None:
        """Nothing that the sequence has in memory is found by others or handed on before it is refilled."""
        sequence.poisoned = True
        for block in sequence.blocks:
            identity = self.cache.forget(block)
            if self._tiers is not None and identity is not None:
                self._tiers.forget(identity)

    def computed(self, sequence: LiveSequence, count: int) -> None:
        """`count` more tokens of the sequence are in memory; its full blocks can be found by others."""
        sequence.computed += count
        if not self.use_prefix_cache or sequence.poisoned:
            return
        ids = sequence.block_ids
        while (len(ids) + 1) * self.block_size <= sequence.computed:
            begin = len(ids) * self.block_size
            ids.append(block_id(ids[-1] if ids else ROOT, sequence.tokens[begin : begin + self.block_size]))
            self.cache.insert(ids[-1], sequence.blocks[len(ids) - 1])

    def _decode(self, counts: dict[LiveSequence, int], budget: int) -> int:
        for sequence in list(self.running):
            # A victim of an earlier row in this loop runs no more.
            if sequence.pending == 1 and budget and sequence.table_row >= 0 and self._reserve(sequence, 1):
                counts[sequence] = 1
                budget -= 1
        return budget

    def _prefill(self, counts: dict[LiveSequence, int], budget: int) -> int:
        for sequence in list(self.running):
            if sequence.pending == 1 or sequence.table_row < 0 or not budget:
                continue
            count = min(sequence.pending, budget)
            if counts:
                # Rows of this step keep their blocks: the chunk shrinks to what is free.
                count = min(count, self._slots_left(sequence))
            if count and self._reserve(sequence, count):
                counts[sequence] = count
                budget -= count
        return budget

    def _admit(self, counts: dict[LiveSequence, int], budget: int) -> None:
        while self.waiting and budget and self._tables.free_rows:
            sequence = self.waiting[0]
            with sequence.phases.lookup:
                hits = self.cache.match(sequence.tokens) if self.use_prefix_cache else []
            idle = sum(self.pool.holders(block) == 0 for _, block in hits)
            needed = -(-len(sequence.tokens) // self.block_size) - len(hits)
            while needed > self._available() - idle:
                if not self._on_pressure():
                    return
            self.waiting.popleft()
            self._begin(sequence, hits)
            counts[sequence] = count = min(sequence.pending, budget)
            self._reserve(sequence, count)
            budget -= count

    def _begin(self, sequence: LiveSequence, hits: list[tuple[bytes, int]]) -> None:
        self._tables.open(sequence)
        self.running.append(sequence)
        for _, block in hits:
            self.cache.hold(block, sequence.handle)
            self._tables.append(sequence, block)
        sequence.block_ids = [identity for identity, _ in hits]
        sequence.computed = len(hits) * self.block_size
        if self._tiers is not None and self.use_prefix_cache:
            with sequence.phases.lookup:
                self._restore(sequence, self._tiers)
        sequence.phases.admitted()
        self.cache.hit_tokens += sequence.computed
        if not sequence.begun:
            sequence.begun = True
            sequence.cached_tokens = sequence.computed
            self._begun.append(sequence.start())

    def _restore(self, sequence: LiveSequence, tiers: LowerTiers) -> None:
        """The prefix goes on in lower tiers: bring its blocks back one by one, up to the first that is not whole."""
        # At least one token is left to compute.
        wanted = block_ids(sequence.tokens[:-1], self.block_size)[len(sequence.block_ids) :]
        # Room for one is made by giving up others, which may push the next one wanted out of host memory.
        tiers.pin(wanted)
        self._restore_in_order(sequence, tiers, wanted)
        tiers.pin(())

    def _restore_in_order(self, sequence: LiveSequence, tiers: LowerTiers, wanted: Sequence[bytes]) -> None:
        for identity in wanted:
            if identity not in tiers:
                return
            block = self._take(sequence.handle)
            self._tables.append(sequence, block)
            if not tiers.restore(identity, block):
                return  # The block stays the sequence's: those tokens are computed into it.
            sequence.block_ids.append(identity)
            sequence.computed += self.block_size
            self.cache.insert(identity, block)

    def _reserve(self, sequence: LiveSequence, count: int) -> bool:
        """Blocks for `count` more tokens, taken from the last comer if need be; False if it was the last comer."""
        needed = -(-(sequence.computed + count) // self.block_size)
        while len(sequence.blocks) < needed:
            if self._available():
                self._tables.append(sequence, self._take(sequence.handle))
                continue
            if self._on_pressure():
                continue
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _available(self) -> int:
        return self.pool.free + self.cache.evictable

    def _slots_left(self, sequence: LiveSequence) -> int:
        return (len(sequence.blocks) + self._available()) * self.block_size - sequence.computed

    def _take(self, handle: int) -> int:
        if not self.pool.free:
            self.cache.evict()
        return self.pool.take(handle)

    def _preempt(self, sequence: LiveSequence) -> None:
        self.running.remove(sequence)
        self._release(sequence, ended=False)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _release(self, sequence: LiveSequence, *, ended: bool) -> None:
        if sequence.poisoned:
            self.pool.condemn(block for block in sequence.blocks if self.pool.holders(block) == 1)
        # The last block first: a prefix's tail is evicted before its head.
        for block in reversed(sequence.blocks):
            self.cache.release(block, sequence.handle)
        self._tables.close(sequence, ended=ended)
        sequence.block_ids.clear()
        sequence.computed = 0

    def _pack(self, step: int, kernel: str, counts: dict[LiveSequence, int]) -> ScheduledStep:
        sequences = list(counts)
        tokens: list[int] = []
        for sequence, count in counts.items():
            tokens += sequence.tokens[sequence.computed : sequence.computed + count]
        lengths = np.fromiter(counts.values(), np.int32, len(counts))
        starts = np.array([sequence.computed for sequence in sequences], np.int32)
        totals = np.array([len(sequence.tokens) for sequence in sequences], np.int32)
        width = max(len(sequence.blocks) for sequence in sequences) + 1
        batch = PackedBatch(
            step=step,
            handles=np.array([sequence.handle for sequence in sequences], np.int32),
            query_lengths=lengths,
            starts=starts,
            samples=starts + lengths == totals,
            token_ids=np.array(tokens, np.int32),
            tables=self._tables.array[[sequence.table_row for sequence in sequences], :width],
            block_size=self.block_size,
            block_changes=self._tables.take_changes(),
            all_tables=lambda: tables_of(self.running),
            begun=tuple(self._begun),
            ended=tuple(self._ended),
            kernel=kernel,
        )
        self._begun.clear()
        self._ended.clear()
        return ScheduledStep(batch, sequences)
