"""What each upstream has seen, so that a request's prefix-cache hit can be estimated before it is sent.

A prompt is cut into blocks and every block is named by f(content, parent), as the engines' own prefix caches do. An
upstream's blocks are kept in order of use, a parent always newer than its children, so that the oldest block is always
a leaf: what is kept is prefix-closed, and the length of a hit is found by bisection.
Limits: an estimate. Engines evict by their own rules, cache outputs too, and forget everything when they restart.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_BYTES = 512
"""About 128 tokens of English: some engine blocks."""
FINE_BLOCKS = 128
COARSE_BYTES = 16 * BLOCK_BYTES
"""Of every block behind the first 128: a prompt is cut on the event loop, and a long one shares much or little."""
DIGEST_BYTES = 8

Chain = Sequence[int]
"""Names of a prompt's blocks, first to last; equal up to i exactly where the prompts are equal up to block i."""


class ChainHash:
    """Keyed per process: names of blocks say nothing about content outside of it, and nobody can aim at a collision."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(16) if key is None else key

    def chain(self, prompt: bytes) -> list[int]:
        """Of whole blocks; the rest at the end is left out, as engines do. About 1.5 ms a megabyte."""
        parent, names, start, size = b"", list[int](), 0, BLOCK_BYTES
        while start + size <= len(prompt):
            block = parent + prompt[start : start + size]
            parent = blake2b(block, digest_size=DIGEST_BYTES, key=self._key).digest()
            names.append(int.from_bytes(parent, "little"))
            start += size
            size = BLOCK_BYTES if len(names) < FINE_BLOCKS else COARSE_BYTES
        return names


def bytes_of(blocks: int) -> int:
    """That so many leading blocks of a chain stand for."""
    return min(blocks, FINE_BLOCKS) * BLOCK_BYTES + max(0, blocks - FINE_BLOCKS) * COARSE_BYTES


class PrefixIndex:
    """`most_blocks` bounds each upstream's share: about 130 bytes a block. Not thread-safe."""

    def __init__(self, most_blocks: int) -> None:
        if most_blocks < 1:
            raise ValueError("an index needs room for a block")
        self._most = most_blocks
        self._seen: dict[str, OrderedDict[int, None]] = {}

    def hit(self, upstream: str, chain: Chain) -> int:
        """Leading blocks of `chain` that the upstream has probably cached."""
        seen = self._seen.get(upstream)
        if not seen or not chain or chain[0] not in seen:
            return 0
        return bisect_left(range(len(chain)), True, key=lambda index: chain[index] not in seen)

    def insert(self, upstream: str, chain: Chain) -> None:
        """The upstream was sent this prompt. Deepest first, so that a parent is newer than its children."""
        seen = self._seen.setdefault(upstream, OrderedDict())
        for name in reversed(chain[: self._most]):
            seen[name] = None
            seen.move_to_end(name)
        while len(seen) > self._most:
            seen.popitem(last=False)

    def forget(self, upstream: str) -> None:
        """It was restarted, or its cache is not trusted any more."""
        self._seen.pop(upstream, None)

    def blocks(self, upstream: str) -> int:
        return len(self._seen.get(upstream, ()))
