"""Seals of KV blocks that leave one vLLM process and arrive in another: made, kept and checked, without vLLM.

Bits of a block are hashed layer by layer as they lie in the cache; on a CPU the kernels pack them in an order of their
own, so that what is called a token here is a place of the packed run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from checkengine.detectors.seal import Expected, Seal, SealError, diagnose, hash_tensor
from checkengine.engine_shim.tiers.payload import BITS
from checkengine.replay.bundle import DeploymentKey
from checkengine.replay.transfer import DecodeRecord, Label, PrefillRecord, Transfer

SUFFIX, DRAFT = ".seal", ".part"
KEEP_HOURS = 168.0
DRAFT_SECONDS = 60.0
SWEEP_EVERY = 1000
"""Blocks sealed between two sweeps."""
Hashes = NDArray[np.uint64]
Vectors = Callable[[str, int, int, int], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a request: what it holds, f(content, parent), and where it lies."""

    identity: bytes
    number: int


def block_cells(cache: torch.Tensor, block: int) -> Hashes:
    """Of one block in one layer's cache, shape (blocks, heads, tokens, width), as (1, tokens, heads)."""
    bits = cache[block].detach().cpu().view(BITS[cache.element_size()]).numpy()
    runs = bits.reshape(bits.shape[0], bits.shape[1], -1) if bits.ndim > 2 else bits[None]
    return hash_tensor(np.ascontiguousarray(runs.swapaxes(0, 1))[None])


@dataclass(frozen=True, slots=True)
class Written:
    """The writer's record of a block: its seal, and the cells as they were handed to the transport."""

    seal: Seal
    sent: Mapping[str, Hashes] | None = None

    def to_bytes(self) -> bytes:
        """The seal's length, the seal, then that of what was sent where it was recorded and differs."""
        seal = self.seal.to_bytes()
        if self.sent is None:
            return _UNKNOWN + seal
        if all((self.sent[name] == self.seal.cells[name]).all() for name in self.sent):
            return _EQUAL + seal
        return _OTHER + len(seal).to_bytes(_LENGTH, "little") + seal + replace(self.seal, cells=self.sent).to_bytes()

    @staticmethod
    def from_bytes(data: bytes) -> Written:
        """SealError for anything else."""
        form, rest = data[:1], data[1:]
        if form == _OTHER:
            size = int.from_bytes(rest[:_LENGTH], "little")
            seal, sent = rest[_LENGTH : _LENGTH + size], rest[_LENGTH + size :]
            return Written(Seal.from_bytes(seal), Seal.from_bytes(sent).cells)
        seal_alone = Seal.from_bytes(rest)
        return Written(seal_alone, seal_alone.cells if form == _EQUAL else None)


_LENGTH = 8
_UNKNOWN, _EQUAL, _OTHER = b"\0", b"\1", b"\2"
MOST_BYTES = 256 * 2**20


class SealStore:
    """A folder that the processes share; a file appears whole or not at all. Names are keyed hashes, and what is in the
    files is encrypted and authenticated with the deployment's key: hashes of content, and nobody else's seals."""

    def __init__(self, folder: Path, key: DeploymentKey, keep_hours: float = KEEP_HOURS) -> None:
        self.folder, self._key, self._keep_seconds = folder, key, keep_hours * 3600
        self._cipher = AESGCM(bytes.fromhex(key.digest("kv seal cipher", "0") + key.digest("kv seal cipher", "1")))
        self.torn = 0
        """Files that were there and not what this deployment wrote."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._puts = 0
        self.sweep()

    def sweep(self) -> None:
        """Delete seals that are older than they are kept, and drafts of processes that died."""
        now = time.time()
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                oldest = {SUFFIX: self._keep_seconds, DRAFT: DRAFT_SECONDS}.get(Path(entry.name).suffix)
                with contextlib.suppress(OSError):
                    if oldest is not None and entry.stat(follow_symlinks=False).st_mtime < now - oldest:
                        os.unlink(entry.path)

    def put(self, identity: bytes, written: Written) -> None:
        """OSError where the disk refuses it; no draft stays behind."""
        self._puts += 1
        if self._puts % SWEEP_EVERY == 0:
            self.sweep()
        path, nonce = self._path(identity), secrets.token_bytes(_NONCE)
        draft = self.folder / f"{secrets.token_hex(8)}{DRAFT}"
        try:
            draft.write_bytes(nonce + self._cipher.encrypt(nonce, written.to_bytes(), path.name.encode()))
            os.replace(draft, path)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise

    def get(self, identity: bytes) -> Written | None:
        """None where there is none, or where it is torn, or another deployment's."""
        path = self._path(identity)
        with contextlib.suppress(OSError):
            if path.stat().st_size > MOST_BYTES:
                self.torn += 1
                return None
            data = path.read_bytes()
            try:
                return Written.from_bytes(self._cipher.decrypt(data[:_NONCE], data[_NONCE:], path.name.encode()))
            except (InvalidTag, SealError, ValueError):
                self.torn += 1
        return None

    def name(self, identity: bytes) -> str:
        return self._key.digest("kv seal", identity.hex())

    def label(self, identity: bytes) -> str:
        return self._key.digest("kv label", identity.hex())

    def _path(self, identity: bytes) -> Path:
        return self.folder / (self.name(identity) + SUFFIX)


_NONCE = 12


@dataclass(slots=True)
class Arrival:
    """A block that is being loaded: its cells before the load, and as each layer arrived."""

    block: Block
    before: dict[str, Hashes]
    arrived: dict[str, Hashes] = field(default_factory=dict)


class SealLedger:
    """Of one worker: seals what it wrote, checks what it is given."""

    def __init__(self, store: SealStore, caches: Mapping[str, torch.Tensor], owner: str, writer: str) -> None:
        self._store, self._caches = store, dict(caches)
        self._names = {layer: f"layer{index:04d}" for index, layer in enumerate(caches)}
        self._owner, self._writer = owner, writer
        self._arrivals: list[Arrival] = []
        self._sending: dict[bytes, dict[str, Hashes]] = {}
        first = next(iter(caches.values()))
        self._dtype = str(first.dtype).removeprefix("torch.")
        self.sealed = self.checked = self.unsealed = 0
        """Blocks; `unsealed` are those that arrived without a seal and were taken as they are."""

    def sending(self, layer: str, blocks: Sequence[Block]) -> None:
        """The layer of these blocks is about to be handed to the transport."""
        if (name := self._names.get(layer)) is not None:
            for block in blocks:
                cells = block_cells(self._caches[layer], block.number)
                self._sending.setdefault(block.identity, {})[name] = cells

    def seal(self, blocks: Sequence[Block]) -> None:
        """OSError where the store refuses it."""
        sending, self._sending = self._sending, {}
        for block in blocks:
            cells = self._cells(block)
            length = next(iter(cells.values())).shape[1]
            label = self._store.label(block.identity)
            seal = Seal(_stacked(cells), label, length, self._dtype, 0, self._owner, self._writer)
            sent = sending.get(block.identity, {})
            whole = len(sent) == len(self._caches)
            self._store.put(block.identity, Written(seal, _stacked(sent) if whole else None))
            self.sealed += 1

    def expect(self, blocks: Sequence[Block]) -> None:
        """They are about to be loaded: their memory as it is now tells later what never came."""
        self._arrivals = [Arrival(block, self._cells(block)) for block in blocks]

    def arrived(self, layer: str) -> None:
        """The layer is about to be read."""
        name = self._names.get(layer)
        if name is None:
            return
        for arrival in self._arrivals:
            arrival.arrived[name] = block_cells(self._caches[layer], arrival.block.number)

    def verdicts(self) -> list[tuple[Block, Transfer]]:
        """Blocks of this step that broke their seal, on arrival or while the step read them; the step's arrivals are
        then forgotten."""
        arrivals, self._arrivals = self._arrivals, []
        found = []
        for arrival in arrivals:
            written = self._store.get(arrival.block.identity)
            if written is None or len(arrival.arrived) < len(self._caches):
                self.unsealed += 1
                continue
            self.checked += 1
            transfer = self._diagnosed(written, arrival)
            if transfer is not None:
                found.append((arrival.block, transfer))
        return found

    def _diagnosed(self, written: Written, arrival: Arrival) -> Transfer | None:
        seal, label = written.seal, self._store.label(arrival.block.identity)
        expected = Expected(label, seal.length, seal.generation, self._owner, self._dtype)
        arrived, before = _stacked(arrival.arrived), _stacked(arrival.before)
        read = _stacked(self._cells(arrival.block))
        vector = self._vectors(arrival.block)
        broken = diagnose(seal, arrived, expected, before=before, vector=vector) or diagnose(
            seal, read, expected, before=before, vector=vector
        )
        if broken is None:
            return None
        # The seal comes on a way of its own, authenticated: it is the writer's record.
        sent = PrefillRecord(seal.writer, Label.of(seal), seal.cells, written.sent)
        wanted = Label(label, seal.length, self._dtype, seal.generation, self._owner)
        came = DecodeRecord(self._writer, wanted, Label.of(seal), seal.writer, seal.cells, arrived, read, before)
        return Transfer(self._store.name(arrival.block.identity), broken, sent, came, time.time())

    def _vectors(self, block: Block) -> Vectors:
        layers = list(self._caches.values())

        def vector(name: str, layer: int, token: int, head: int) -> NDArray[Any]:
            cache = layers[layer]
            bits = cache[block.number].detach().cpu().view(BITS[cache.element_size()]).numpy()
            found: NDArray[Any] = bits[head, token].reshape(-1)
            return found

        return vector

    def _cells(self, block: Block) -> dict[str, Hashes]:
        return {self._names[layer]: block_cells(cache, block.number) for layer, cache in self._caches.items()}


def _stacked(cells: Mapping[str, Hashes]) -> dict[str, Hashes]:
    """Layers of one form as one array (layers, tokens, heads), so that layers which changed places are told."""
    return {"kv": np.concatenate([cells[name] for name in sorted(cells)])}
