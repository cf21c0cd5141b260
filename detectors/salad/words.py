"""Words put together of tokens: a hash that grows with every piece, so that no vocabulary has to hold them whole."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.salad.sense import HASH_BASE, HASH_PRIME
from checkengine.detectors.salad.tables import load_tables

PLACES = 2048
_LETTERS = re.compile(rb"(?s) ?([A-Za-z\x80-\xff]*)")


def letters_of(piece: bytes) -> bytes | None:
    """The letters of a piece that holds nothing else but a blank before them; None for other pieces."""
    match = _LETTERS.fullmatch(piece)
    return match[1] if match and piece else None


def hash_of(letters: bytes) -> tuple[int, int]:
    """Hash of the letters, and what to multiply the hash of those before them by."""
    found = 0
    for letter in letters:
        found = (found * HASH_BASE + letter) % HASH_PRIME
    return found, pow(HASH_BASE, len(letters), HASH_PRIME)


@cache
def word_places() -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """Hashes and numbers of the function words at their places; free places hold -1."""
    hashes, numbers = np.full(PLACES, -1, np.int64), np.full(PLACES, -1, np.int16)
    for number, word in enumerate(load_tables().words):
        hashed, _ = hash_of(word.encode())
        at = hashed % PLACES
        while hashes[at] >= 0:
            at = (at + 1) % PLACES
        hashes[at], numbers[at] = hashed, number
    return hashes, numbers
