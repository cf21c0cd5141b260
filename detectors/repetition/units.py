"""What the tokens of a vocabulary are worth as evidence of repetition, and whether they are prose.

A unit is an int32: identity << 9 | kind << 6 | weight. Weights are in sixteenths of an English word's token, by the
letters of the script: a tokenizer that cuts Korean into bytes makes a text longer, not more repetitive.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.repetition.state import (
    BLANK,
    CODE,
    INDENT,
    NUMBER,
    SIGN,
    UNIT_BITS,
    WEIGHT_BITS,
    WORD,
)

WHOLE = 16
IDENTITIES = 1 << (31 - UNIT_BITS)
CODE_SIGNS = frozenset('{}[]()<>=_/\\|#$&*+^~@`;"%')
_FINE, _LATIN, _OTHER = 10, 4, 5
"""Weights of a letter: Han, kana and Hangul; Latin; everything else."""


def token_units(pieces: Sequence[bytes]) -> NDArray[np.int32]:
    """The unit of each token id, shape (vocabulary,), from the bytes that each adds to a text."""
    units = [(token % IDENTITIES) << UNIT_BITS | kind_and_weight(piece) for token, piece in enumerate(pieces)]
    return np.array(units, np.int32)


def plain_units(tokens: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
    """Units of tokens of which nothing is known: each counts as a word."""
    return ((tokens & (IDENTITIES - 1)) << UNIT_BITS | WORD << WEIGHT_BITS | WHOLE).astype(np.int32)


def kind_and_weight(piece: bytes) -> int:
    """kind << 6 | weight of a token's bytes."""
    try:
        kind, weight = describe(piece.decode())
    except UnicodeDecodeError:
        # Part of a character. U+2000 … U+2FFF are signs and box drawing; the rest is letters far more often than not.
        kind, weight = (SIGN, _LATIN) if piece[0] == 0xE2 else (WORD, min(WHOLE, 3 * len(piece)))
    return kind << WEIGHT_BITS | weight


def describe(text: str) -> tuple[int, int]:
    """Kind and weight of a token's text."""
    core = text.strip()
    if all(is_blank(character) for character in core):
        return (INDENT if text.isspace() and (len(text) > 2 or "\t" in text) else BLANK), WHOLE
    if any(character in CODE_SIGNS for character in core):
        return CODE, WHOLE
    letters = sum(letter_weight(character) for character in core)
    if not letters:
        return (NUMBER if any(character.isnumeric() for character in core) else SIGN), WHOLE
    latin = ord(core[0]) < 0x250
    if latin and text[0].isspace():
        return (WORD if len(core) > 1 else SIGN), WHOLE
    # A capital in mid word: camel case, constants, chemical names.
    kind = CODE if latin and core[0].isupper() else WORD
    return (kind if letters > _OTHER or len(core) > 1 else SIGN), min(letters, WHOLE)


@lru_cache(maxsize=4096)
def letter_weight(character: str) -> int:
    """0 for what is no letter."""
    code = ord(character)
    if unicodedata.category(character)[0] not in "LM":
        return 0
    if 0x3040 <= code <= 0x30FF or 0x3400 <= code <= 0x9FFF or 0xAC00 <= code <= 0xD7A3 or code >= 0x20000:
        return _FINE
    return _LATIN if code < 0x250 else _OTHER


@lru_cache(maxsize=4096)
def is_blank(character: str) -> bool:
    """White space, control and format characters (zero-width, direction marks, tags), fillers, unassigned variation
    selectors: nothing that a reader sees."""
    return unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cf") or character in _INVISIBLE


_INVISIBLE = frozenset("\u2800\u3164\uffa0\u115f\u1160\u034f\u17b4\u17b5") | {
    chr(code) for code in range(0xFE00, 0xFE10)
}
"""Braille blank, Hangul fillers, grapheme joiner, Khmer inherent vowels, variation selectors."""
