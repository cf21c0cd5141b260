"""Which single bit of a vector was flipped: found from its hash alone, since each word is a term of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.fingerprint import OFFSET, column_keys
from checkengine.detectors.seal.cells import words_of

_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Flip:
    byte: int
    """Within the vector."""
    bit: int
    """0 is the lowest of that byte."""


def find_flip(vector: NDArray[np.generic], wanted: int) -> Flip | None:
    """The bit whose flip gives a vector, shape (dim,), the hash that was sealed; None where no single one does.

    64 candidates a word: a chance match has odds of about dim x 32 in 2^64.
    """
    words = words_of(vector[None])[0]
    keys = column_keys(len(words))
    terms = _terms(words, keys)
    missing = np.uint64((wanted - int(terms.sum(dtype=np.uint64))) % 2**64)
    candidates = words[:, None] ^ (np.uint64(1) << np.arange(64, dtype=np.uint64))
    found = np.argwhere(_terms(candidates, keys[:, None]) - terms[:, None] == missing)
    if len(found) == 0:
        return None
    word, bit = (int(each) for each in found[0])
    return Flip(word * 8 + bit // 8, bit % 8)


def _terms(words: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        product = ((words ^ (words >> _HALF)) + np.uint64(OFFSET)) * keys
    return product ^ (product >> _HALF)
