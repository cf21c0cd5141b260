"""The tiers behind an engine's memory, as its scheduler sees them: keep a block that must go, bring one back.

A block is sealed from the engine's memory before it leaves and verified in the engine's memory after it came back,
before anybody reads it. One that does not fit its seal is refused: the finding is told, the block is dropped from every
tier, and the sequence computes those tokens again, so that its answer is that of a clean run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from checkengine.detectors.seal import Broken, Cells, Expected, Seal, diagnose
from checkengine.engine_shim.background import BackgroundWorker
from checkengine.engine_shim.tiers.disk import DiskTier
from checkengine.engine_shim.tiers.host import HostTier
from checkengine.engine_shim.tiers.moves import Move
from checkengine.engine_shim.tiers.payload import Payload, block_bits, cells_of
from checkengine.engine_shim.tiers.sealing import Sealing
from checkengine.replay.transfer import DecodeRecord, Label, PrefillRecord, Transfer

WAITING_WRITES = 64
WAITING_HINTS = 16


@dataclass(slots=True)
class TierCounts:
    """Since the start. Seconds are wall time that the engine's thread waited."""

    host_hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    """Look-ups of a block behind the device's prefix that no tier had."""
    refused: dict[str, int] = field(default_factory=dict)
    """Blocks that broke their seal, by what broke it."""
    kept: int = 0
    dropped: int = 0
    """Blocks that had to go and went nowhere: no tier has room, or the disk is behind."""
    bytes_out: int = 0
    bytes_in: int = 0
    out_seconds: float = 0.0
    host_seconds: float = 0.0
    disk_seconds: float = 0.0
    prefetched: int = 0


class TieredBlocks:
    """`refuse` hears of a block that broke its seal, with both sides' records of it, on the engine's thread."""

    def __init__(
        self,
        memory: Mapping[str, torch.Tensor],
        host: HostTier,
        disk: DiskTier | None,
        *,
        owner: str,
        writer: str,
        move: Move | None = None,
        refuse: Callable[[Transfer, int], None] = lambda transfer, block: None,
        prefetch_bytes: int = 64 * 2**20,
        pipelined: bool = False,
    ) -> None:
        self.counts = TierCounts()
        self.refuse = refuse
        self._memory = memory
        self._disk = disk
        self._host = host
        self._host.give_up = self._give_up
        self._owner, self._writer = owner, writer
        self.move = move or Move()
        self._prefetch_bytes = prefetch_bytes
        self._sealing = Sealing(pipelined)
        self._dtype = str(next(iter(memory.values())).dtype).removeprefix("torch.")
        self._generations: dict[bytes, int] = {}
        self._on_the_way: dict[bytes, Payload] = {}
        """Given up by host memory and not on disk yet."""
        self._writes: BackgroundWorker[tuple[bytes, Payload]] | None = None
        self._hints: BackgroundWorker[Sequence[bytes]] | None = None
        if disk is not None:
            self._writes = BackgroundWorker(lambda each: self._write(*each), name="kv-disk", waiting=WAITING_WRITES)
            self._hints = BackgroundWorker(self._fetch, name="kv-prefetch", waiting=WAITING_HINTS)

    def __contains__(self, identity: bytes) -> bool:
        if identity in self._host or identity in self._on_the_way:
            return True
        return self._disk is not None and identity in self._disk

    @property
    def has_disk(self) -> bool:
        return self._disk is not None

    def keep(self, identity: bytes, block: int, generation: int) -> None:
        """The block is about to be given up by the engine: seal it, copy it, hand it down."""
        if identity in self:
            return
        began = time.perf_counter()
        described = (*self._described(identity), generation, self._owner, self._writer)
        payload = self._sealing.copied(block_bits(self._memory, block), lambda cells: Seal(cells, *described))
        payload = self.move.leave(payload)
        self._generations[identity] = generation
        self._host.put(identity, payload)
        self.counts.kept += 1
        self.counts.bytes_out += payload.size
        self.counts.out_seconds += time.perf_counter() - began

    def restore(self, identity: bytes, block: int) -> bool:
        """Into the engine's block, verified there. False: it is not there, or it was refused; the block holds anything
        then."""
        began = time.perf_counter()
        payload = self._host.get(identity) or self._on_the_way.get(identity)
        from_host = payload is not None
        if payload is None and self._disk is not None:
            payload = self._disk.get(identity)
        if payload is None:
            self.counts.misses += 1
            return False
        transfer = self._place(identity, payload, block)
        self._count(from_host, payload.size, time.perf_counter() - began)
        if transfer is None:
            return True
        kind = transfer.broken.kind
        self.counts.refused[kind] = self.counts.refused.get(kind, 0) + 1
        self.forget(identity)
        self.refuse(transfer, block)
        return False

    def pin(self, identities: Iterable[bytes]) -> None:
        """These are about to be restored: what gives way to other blocks meanwhile is none of them. Until the next."""
        self._host.pinned = frozenset(identities)

    def forget(self, identity: bytes) -> None:
        """From every tier."""
        self._host.forget(identity)
        self._on_the_way.pop(identity, None)
        self._generations.pop(identity, None)
        if self._disk is not None:
            self._disk.forget(identity)

    def prefetch(self, identities: Sequence[bytes]) -> bool:
        """Bring blocks from disk to host memory ahead of a request; never waits. False where that is not possible."""
        return self._hints is not None and self._hints.put(list(identities))

    def wait(self) -> None:
        """Until no write and no prefetch is under way."""
        for worker in (self._writes, self._hints):
            if worker is not None:
                worker.wait()

    def flush(self) -> None:
        """Hand all of host memory to the disk, for the engine that comes next."""
        if self._disk is not None:
            for identity, payload in self._host.items():
                self._write(identity, payload)

    def close(self, timeout: float = 30.0) -> None:
        for worker in (self._writes, self._hints):
            if worker is not None and worker.open:
                worker.close(timeout)
        self._sealing.close()

    def _place(self, identity: bytes, kept: Payload, block: int) -> Transfer | None:
        destination = block_bits(self._memory, block)
        before = cells_of(destination)
        came = self.move.carry(kept)
        self.move.place(came, destination)
        generation = kept.seal.generation
        if kept.seal.writer == self._writer:
            # Another engine that shares the disk, or one before this, counts its memory's generations for itself.
            generation = self._generations.get(identity, generation)
        expected = Expected(*self._described(identity)[:2], generation, self._owner, self._dtype)
        read = cells_of(destination)
        broken = diagnose(
            came.seal,
            read,
            expected,
            before=before,
            vector=lambda name, layer, token, head: destination[name][layer, token, head],
        )
        return None if broken is None else self._way(broken, expected, kept, came, before, read)

    def _way(
        self, broken: Broken, expected: Expected, kept: Payload, came: Payload, before: Cells, read: Cells
    ) -> Transfer:
        """Both sides' records. What lies in a tier is its writer's own: in its memory, or a file that decrypted."""
        sent = PrefillRecord(kept.seal.writer, Label.of(kept.seal), kept.seal.cells, cells_of(kept.tensors))
        wanted = Label(expected.tokens, expected.length, expected.dtype, expected.generation, expected.owner)
        got = DecodeRecord(
            self._writer, wanted, Label.of(came.seal), came.seal.writer, came.seal.cells, cells_of(came.tensors), read,
            before,
        )  # fmt: skip
        return Transfer(expected.tokens, broken, sent, got, time.time())

    def _described(self, identity: bytes) -> tuple[str, int, str]:
        length = next(iter(self._memory.values())).shape[2]
        return identity.hex(), length, self._dtype

    def _count(self, from_host: bool, moved: int, seconds: float) -> None:
        self.counts.bytes_in += moved
        if from_host:
            self.counts.host_hits += 1
            self.counts.host_seconds += seconds
        else:
            self.counts.disk_hits += 1
            self.counts.disk_seconds += seconds

    def _give_up(self, identity: bytes, payload: Payload) -> None:
        self._on_the_way[identity] = payload
        if self._writes is None or not self._writes.put((identity, payload)):
            self.counts.dropped += 1
            self._on_the_way.pop(identity, None)
            self._generations.pop(identity, None)

    def _write(self, identity: bytes, payload: Payload) -> None:
        """Nothing stays on disk that was forgotten meanwhile: it may be poisoned."""
        if self._disk is None or not self._wanted(identity):
            return
        try:
            if not self._disk.put(identity, payload):
                self.counts.dropped += 1
            if not self._wanted(identity):
                self._disk.forget(identity)
        finally:
            # Whatever went wrong: what nobody writes any more is held in memory by nobody.
            self._on_the_way.pop(identity, None)

    def _wanted(self, identity: bytes) -> bool:
        return identity in self._on_the_way or identity in self._host

    def _fetch(self, identities: Sequence[bytes]) -> None:
        left = min(self._prefetch_bytes, self._host.budget)
        for identity in identities:
            if identity in self._host:
                continue
            payload = self._on_the_way.get(identity) or (None if self._disk is None else self._disk.get(identity))
            if payload is None or payload.size > left:
                return
            left -= payload.size
            self._host.put(identity, payload)
            self.counts.prefetched += 1
