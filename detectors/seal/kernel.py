"""Hashes of many short runs of memory, in one pass over it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.compiled import compiled

Words = NDArray[np.uint64]


def _hash_cells(words: Words, keys: Words, offset: np.uint64, hashes: Words) -> None:
    """`words` has shape (cells, width), `keys` (width,), `hashes` (cells,)."""
    half = np.uint64(32)
    for cell in range(words.shape[0]):
        total = np.uint64(0)
        for column in range(words.shape[1]):
            word = words[cell, column]
            product = ((word ^ (word >> half)) + offset) * keys[column]
            total += product ^ (product >> half)
        hashes[cell] = total


def _copy_cells(words: Words, keys: Words, offset: np.uint64, hashes: Words, copies: Words) -> None:
    """As `_hash_cells`, and copies the words in the same pass: memory is read once."""
    half = np.uint64(32)
    for cell in range(words.shape[0]):
        total = np.uint64(0)
        for column in range(words.shape[1]):
            word = words[cell, column]
            copies[cell, column] = word
            product = ((word ^ (word >> half)) + offset) * keys[column]
            total += product ^ (product >> half)
        hashes[cell] = total


hash_cells: Any = compiled(_hash_cells)
copy_cells: Any = compiled(_copy_cells)
