"""Function words that follow each other as in no healthy text, compiled; words are put together of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.salad.columns import (
    BEGINS_SPACE,
    COUNT,
    EDGE,
    LAST_WORD,
    LETTERS_HASH,
    LETTERS_ONLY,
    OPEN_WORD,
    POWER,
    WORD_RUN,
    WORDS,
    within,
)

WORD_NATS = (-0.6, 1.5, 4.0, 0.6)
"""Of two function words in a row: as in healthy text, never seen but rare anyway, avoided, rarer than by chance..."""
WORD_FADE = 0.45
"""... and what any other word or token takes away."""
HASH_BASE, HASH_PRIME = 257, (1 << 31) - 1


@within
def word(row: Any, hashes: Any, numbers: Any, pairs: Any, whole: Any, real: Any) -> None:
    """Puts words together of tokens, by a rolling hash, and weighs two function words that follow each other."""
    edge = row[EDGE]
    if edge & LETTERS_ONLY and not edge & BEGINS_SPACE and whole[OPEN_WORD] >= 0:
        whole[OPEN_WORD] = (whole[OPEN_WORD] * row[POWER] + row[LETTERS_HASH]) % HASH_PRIME
        return
    if whole[OPEN_WORD] >= 0:
        neighbour(number_of(whole[OPEN_WORD], hashes, numbers), pairs, whole, real)
    whole[OPEN_WORD] = row[LETTERS_HASH] if edge & LETTERS_ONLY else -1
    if not edge & BEGINS_SPACE:
        whole[LAST_WORD] = -1
    if not edge & LETTERS_ONLY:
        real[WORDS] = max(real[WORDS] - np.float32(WORD_FADE), np.float32(0.0))
    if real[WORDS] == 0.0:
        whole[WORD_RUN] = whole[COUNT] - 1


@within
def number_of(hashed: Any, hashes: Any, numbers: Any) -> int:
    """Of a function word; -1 for other words."""
    places = len(hashes)
    at = hashed % places
    while hashes[at] >= 0:
        if hashes[at] == hashed:
            return int(numbers[at])
        at = (at + 1) % places
    return -1


@within
def neighbour(number: Any, pairs: Any, whole: Any, real: Any) -> None:
    before = whole[LAST_WORD]
    whole[LAST_WORD] = number
    if number < 0:
        real[WORDS] = max(real[WORDS] - np.float32(WORD_FADE), np.float32(0.0))
    elif before >= 0 and before != number:  # a word twice is repetition, as in a refrain
        state = (pairs[before, number >> 2] >> (2 * (number & 3))) & 3
        real[WORDS] = max(real[WORDS] + np.float32(WORD_NATS[state]), np.float32(0.0))
