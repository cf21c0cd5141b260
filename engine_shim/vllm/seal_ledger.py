"""Seals of KV blocks that leave one vLLM process and arrive in another: made, kept and checked, without vLLM.

Bits of a block are hashed layer by layer as they lie in the cache; on a CPU the kernels pack them in an order of their
own, so that what is called a token here is a place of the packed run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors.seal import Broken, Expected, Seal, SealError, diagnose, hash_tensor
from checkengine.engine_shim.tiers.payload import BITS
from checkengine.replay.bundle import DeploymentKey

SUFFIX = ".seal"
Hashes = NDArray[np.uint64]


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


class SealStore:
    """A folder that the processes share; a file appears whole or not at all. Names are keyed hashes."""

    def __init__(self, folder: Path, key: DeploymentKey) -> None:
        self.folder, self._key = folder, key
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(self, identity: bytes, seal: Seal) -> None:
        draft = self.folder / f"{secrets.token_hex(8)}.part"
        draft.write_bytes(seal.to_bytes())
        os.replace(draft, self._path(identity))

    def get(self, identity: bytes) -> Seal | None:
        """None where there is none, or where it is torn."""
        with contextlib.suppress(OSError, SealError):
            return Seal.from_bytes(self._path(identity).read_bytes())
        return None

    def _path(self, identity: bytes) -> Path:
        return self.folder / (self._key.digest("kv seal", identity.hex()) + SUFFIX)


@dataclass(slots=True)
class Arrival:
    """A block that is being loaded: its cells before the load, and as each layer arrived."""

    block: Block
    before: dict[str, Hashes] = field(default_factory=dict)
    arrived: dict[str, Hashes] = field(default_factory=dict)


class SealLedger:
    """Of one worker: seals what it wrote, checks what it is given."""

    def __init__(self, store: SealStore, caches: Mapping[str, torch.Tensor], owner: str, writer: str) -> None:
        self._store, self._caches = store, dict(caches)
        self._names = {layer: f"layer{index:04d}" for index, layer in enumerate(caches)}
        self._owner, self._writer = owner, writer
        self._arrivals: list[Arrival] = []
        first = next(iter(caches.values()))
        self._dtype = str(first.dtype).removeprefix("torch.")
        self.sealed = self.checked = self.unsealed = 0
        """Blocks; `unsealed` are those that arrived without a seal and were taken as they are."""

    def seal(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            cells = {self._names[layer]: block_cells(cache, block.number) for layer, cache in self._caches.items()}
            length = next(iter(cells.values())).shape[1]
            seal = Seal(_stacked(cells), self._label(block), length, self._dtype, 0, self._owner, self._writer)
            self._store.put(block.identity, seal)
            self.sealed += 1

    def expect(self, blocks: Sequence[Block]) -> None:
        """They are about to be loaded: their memory as it is now tells later what never came."""
        self._arrivals = [Arrival(block) for block in blocks]
        for arrival in self._arrivals:
            for layer, cache in self._caches.items():
                arrival.before[self._names[layer]] = block_cells(cache, arrival.block.number)

    def arrived(self, layer: str) -> None:
        """The layer is about to be read."""
        name = self._names.get(layer)
        if name is None:
            return
        for arrival in self._arrivals:
            arrival.arrived[name] = block_cells(self._caches[layer], arrival.block.number)

    def verdicts(self) -> list[tuple[Block, Broken]]:
        """Blocks of this step that broke their seal; the step's arrivals are then forgotten."""
        arrivals, self._arrivals = self._arrivals, []
        found = []
        for arrival in arrivals:
            seal = self._store.get(arrival.block.identity)
            if seal is None or len(arrival.arrived) < len(self._caches):
                self.unsealed += 1
                continue
            self.checked += 1
            broken = self._diagnosed(seal, arrival)
            if broken is not None:
                found.append((arrival.block, broken))
        return found

    def _diagnosed(self, seal: Seal, arrival: Arrival) -> Broken | None:
        expected = Expected(self._label(arrival.block), seal.length, seal.generation, self._owner, self._dtype)
        layers = list(self._caches.values())

        def vector(name: str, layer: int, token: int, head: int) -> NDArray[Any]:
            cache = layers[layer]
            bits = cache[arrival.block.number].detach().cpu().view(BITS[cache.element_size()]).numpy()
            found: NDArray[Any] = bits[head, token].reshape(-1)
            return found

        arrived, before = _stacked(arrival.arrived), _stacked(arrival.before)
        return diagnose(seal, arrived, expected, before=before, vector=vector)

    def _label(self, block: Block) -> str:
        return self._store._key.digest("kv label", block.identity.hex())


def _stacked(cells: Mapping[str, Hashes]) -> dict[str, Hashes]:
    """Layers of one form as one array (layers, tokens, heads), so that layers which changed places are told."""
    return {"kv": np.concatenate([cells[name] for name in sorted(cells)])}
