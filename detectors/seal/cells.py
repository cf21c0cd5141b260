"""Hashes of a KV block's bytes, one for each layer, token and head.

A cell is the vector of one head, of one token, in one layer: `bytes` of it as unsigned 64-bit words w(i), the last one
padded with zeros; with the fingerprint's offset and odd keys (detectors/logits/fingerprint.py)

    product = ((w(i) ^ (w(i) >> 32)) + OFFSET) * key(i)      mod 2^64
    hash    = sum of product ^ (product >> 32)               mod 2^64

Each term is a bijection of its word: no change within one word is ever missed. The first shift brings a word's highest
bit down, where the key spreads it: without it two flipped signs would cancel half of the time. Hashes of cells do not
depend on where the cell lies, so that shards of heads (tensor parallelism) are joined or split without the bytes; the
position comes in with the digest over all cells (`digest`), which is a sum as well and so needs no order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.fingerprint import OFFSET, column_keys, mix64
from checkengine.detectors.seal.kernel import copy_cells, hash_cells

Hashes = NDArray[np.uint64]
Cells = Mapping[str, Hashes]
"""Name of a tensor (`kv0.key`, `kv0.value`) to hashes of shape (layers, tokens, heads)."""
WORD = 8


def words_of(vectors: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Shape (…, dim) of any dtype to (cells, words); without a copy where vectors are whole words in a row."""
    cells, width = int(np.prod(vectors.shape[:-1])), vectors.shape[-1]
    flat = np.ascontiguousarray(vectors).reshape(cells, width)
    as_bytes = flat.view(np.uint8).reshape(cells, width * vectors.dtype.itemsize)
    spare = -as_bytes.shape[1] % WORD
    if spare:
        as_bytes = np.pad(as_bytes, ((0, 0), (0, spare)))
    return as_bytes.view(np.uint64)


def hash_tensor(vectors: NDArray[np.generic]) -> Hashes:
    """Shape (layers, tokens, heads, dim), bits of any dtype, to (layers, tokens, heads)."""
    words = words_of(vectors)
    hashes = np.empty(len(words), np.uint64)
    hash_cells(words, column_keys(words.shape[1]), np.uint64(OFFSET), hashes)
    return hashes.reshape(vectors.shape[:-1])


def copy_tensor(vectors: NDArray[np.generic], copies: NDArray[np.generic]) -> Hashes:
    """As `hash_tensor`, and copies the bytes in the same pass. `copies` has the same shape and dtype, C-contiguous.

    A vector whose bytes are no whole number of words is copied apart.
    """
    words = words_of(vectors)
    if vectors.shape[-1] * vectors.dtype.itemsize % WORD or not copies.flags.c_contiguous:
        copies[...] = vectors
        return hash_tensor(vectors)
    hashes = np.empty(len(words), np.uint64)
    target = copies.reshape(len(words), copies.shape[-1]).view(np.uint64)
    copy_cells(words, column_keys(words.shape[1]), np.uint64(OFFSET), hashes, target)
    return hashes.reshape(vectors.shape[:-1])


def digest(cells: Cells, first_head: int = 0) -> int:
    """Of all cells at their places: digests of shards of heads add up (mod 2^64) to that of the whole."""
    parts = [int(_placed(name, cells[name], first_head).sum(dtype=np.uint64)) for name in sorted(cells)]
    return sum(parts) % 2**64


def _placed(name: str, hashes: Hashes, first_head: int) -> Hashes:
    layer, token, head = np.meshgrid(*(np.arange(size, dtype=np.uint64) for size in hashes.shape), indexing="ij")
    place = (layer << np.uint64(40)) | (token << np.uint64(16)) | (head + np.uint64(first_head))
    kind = np.array(list(name.encode().ljust(WORD, b"\0")), np.uint64)
    kind_key = mix64((kind << (np.arange(len(kind), dtype=np.uint64) % np.uint64(8) * np.uint64(8))).sum(keepdims=True))
    return mix64(hashes ^ mix64(place + kind_key))
