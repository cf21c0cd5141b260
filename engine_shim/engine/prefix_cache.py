"""Blocks of known content, found again by what they hold and what came before them.

A block's id is a hash of its parent's id and its tokens, so equal ids mean equal prefixes: a radix tree over whole
blocks, kept as a table.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from checkengine.engine_shim.engine.block_pool import BlockPool, BlockState

ROOT = b""


def block_id(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Id of a full block: BLAKE2b-128 of the parent's id and the block's tokens."""
    return hashlib.blake2b(np.asarray(tokens, np.int32).tobytes(), key=parent, digest_size=16).digest()


def block_ids(tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Ids of all full blocks of a sequence, the same in every process."""
    ids: list[bytes] = []
    for end in range(block_size, len(tokens) + 1, block_size):
        ids.append(block_id(ids[-1] if ids else ROOT, tokens[end - block_size : end]))
    return ids


class PrefixCache:
    """Knows full blocks by id. Evicts the least recently used among those that no sequence holds."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self._block: dict[bytes, int] = {}
        self._id: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.before_evict: Callable[[bytes, int], None] = lambda identity, block: None
        """Told of each block that has to go, while its content is there."""
        self.hit_tokens = 0

    def __contains__(self, block: int) -> bool:
        return block in self._id

    @property
    def evictable(self) -> int:
        return len(self._idle)

    def match(self, tokens: Sequence[int]) -> list[tuple[bytes, int]]:
        """Ids and blocks of the longest cached prefix. At least one token is left to compute."""
        found: list[tuple[bytes, int]] = []
        parent = ROOT
        for end in range(self.block_size, len(tokens), self.block_size):
            parent = block_id(parent, tokens[end - self.block_size : end])
            block = self._block.get(parent)
            if block is None:
                break
            found.append((parent, block))
        return found

    def hold(self, block: int, handle: int) -> None:
        """A sequence reads a cached block."""
        self._idle.pop(block, None)
        self.pool.share(block, handle)

    def insert(self, identity: bytes, block: int) -> None:
        """A block is full. Where its content is cached already, the older block stays the cached one."""
        if identity not in self._block:
            self._block[identity] = block
            self._id[block] = identity

    def release(self, block: int, handle: int) -> None:
        self.pool.release(block, handle, cached=block in self._id)
        if self.pool.owner(block).state is BlockState.CACHED:
            self._idle[block] = None

    def evict(self) -> int:
        """Frees the least recently used idle block; KeyError if there is none."""
        block, _ = self._idle.popitem(last=False)
        self.before_evict(self._id[block], block)
        self.forget(block)
        self.pool.evict(block)
        return block

    def forget(self, block: int) -> bytes | None:
        """The block leaves the cache; its state in the pool is the caller's business. Returns the id that it had."""
        self._idle.pop(block, None)
        identity = self._id.pop(block, None)
        if identity is not None:
            del self._block[identity]
        return identity
