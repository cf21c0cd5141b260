"""Classes of tokens by how they look and how common they are: a table over a vocabulary, whosever it is.

How common a token is, is read from its id: merges of byte-pair vocabularies, and pieces of unigram ones, stand in
the order of their frequency.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class TokenClass(IntEnum):
    """WORD begins with a space, PART does not; the number is the count of letters.

    A token is of the first class that fits; MIXED holds letters together with digits, signs or inner capitals.
    """

    SPECIAL = 0
    WORD_1 = 1
    WORD_3 = 2
    WORD_6 = 3
    WORD_LONG = 4
    CAPITAL_WORD = 5
    UPPER_WORD = 6
    CAPITAL_LETTER_WORD = 7
    PART_1 = 8
    PART_3 = 9
    PART_LONG = 10
    CAPITAL_PART = 11
    UPPER_LETTER = 12
    UPPER_PART = 13
    MIXED = 14
    MIXED_WORD = 15
    DIGITS = 16
    SPACED_DIGITS = 17
    SENTENCE_END = 18
    COMMA = 19
    COLON = 20
    OPEN = 21
    CLOSE = 22
    QUOTE = 23
    CONTRACTION = 24
    DASH = 25
    SIGN = 26
    SIGNS = 27
    SPACED_OPEN = 28
    SPACED_DASH = 29
    SPACED_SIGN = 30
    SPACE = 31
    SPACES = 32
    NEWLINE = 33
    INDENT = 34
    ODD_SPACE = 35
    BYTES = 36
    OTHER_SCRIPT = 37
    ACCENTED = 38
    ACCENTED_WORD = 39
    SYMBOL = 40


_C = TokenClass
RANKED = (
    _C.WORD_3,
    _C.WORD_6,
    _C.WORD_LONG,
    _C.PART_3,
    _C.PART_LONG,
    _C.CAPITAL_WORD,
    _C.UPPER_WORD,
    _C.CAPITAL_PART,
    _C.UPPER_PART,
    _C.MIXED,
    _C.SIGNS,
)
"""Classes that are told apart by frequency too: the common half keeps its number, the others get one behind these."""
RANKS = (24, 4)
"""Common is up to a 24th of the ids, rare from a quarter on."""
CLASSES = len(TokenClass) + len(RANKS) * len(RANKED)
FORMS = (*range(len(TokenClass)), *(form for form in map(int, RANKED) for _ in RANKS))
"""The `TokenClass` of each class."""

_SIGNS = {
    **dict.fromkeys(".!?", _C.SENTENCE_END),
    **dict.fromkeys(",;", _C.COMMA),
    ":": _C.COLON,
    **dict.fromkeys("([{<", _C.OPEN),
    **dict.fromkeys(")]}>", _C.CLOSE),
    **dict.fromkeys("\"'`", _C.QUOTE),
    **dict.fromkeys("-_/", _C.DASH),
}
_SPACED = {
    **dict.fromkeys((_C.OPEN, _C.QUOTE), _C.SPACED_OPEN),
    _C.DASH: _C.SPACED_DASH,
}


def classes_of(pieces: Sequence[bytes], special: frozenset[int] = frozenset()) -> NDArray[np.uint8]:
    """Class of each token id, 0 … CLASSES − 1, shape (size,), from the bytes that the token adds to a text."""
    table = [_C.SPECIAL if token in special or not piece else class_of(piece) for token, piece in enumerate(pieces)]
    forms = np.array(table, np.uint8)
    size = len(pieces)
    rank = np.searchsorted(np.array([size // part for part in RANKS]), np.arange(size), side="right")
    for order, form in enumerate(RANKED):
        for level in range(1, len(RANKS) + 1):
            forms[(forms == form) & (rank == level)] = len(TokenClass) + len(RANKS) * order + level - 1
    return forms


def in_order_of_frequency(pieces: Sequence[bytes]) -> bool:
    """Whether ids go from the common to the rare, judged by length: the late pieces of such vocabularies are longer.

    Of pieces of several characters: SentencePiece puts single ones behind all others.
    """
    lengths = [len(piece) for piece in pieces if len(piece) > 1 and len(piece.decode("utf-8", "ignore")) > 1]
    quarter = len(lengths) // 4
    return quarter > 0 and sum(lengths[:quarter]) < 0.9 * sum(lengths[-quarter:])


def class_of(piece: bytes) -> TokenClass:
    """By looks alone."""
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        return _C.BYTES
    if text.isspace():
        return _blank(text)
    spaced, body = text[0].isspace(), text.strip()
    if body.isalpha():
        return _letters(body, spaced)
    if body.isdigit():
        return _C.SPACED_DIGITS if spaced else _C.DIGITS
    if any(character.isalnum() for character in body):
        return _mixed(body, spaced)
    return _signs(body, spaced)


def _blank(text: str) -> TokenClass:
    if not set(text) <= set(" \t\n\r"):
        return _C.ODD_SPACE
    if "\n" in text or "\r" in text:
        return _C.INDENT if text[-1] in " \t" else _C.NEWLINE
    return _C.SPACE if len(text) == 1 else _C.SPACES


def _letters(body: str, spaced: bool) -> TokenClass:
    if not body.isascii():
        if any(ord(character) > 0x24F for character in body):
            return _C.OTHER_SCRIPT
        return _C.ACCENTED_WORD if spaced else _C.ACCENTED
    if body.islower():
        word, part = (_C.WORD_1, _C.WORD_3, _C.WORD_6, _C.WORD_LONG), (_C.PART_1, _C.PART_3, _C.PART_LONG, _C.PART_LONG)
        return (word if spaced else part)[sum(len(body) > size for size in (1, 3, 6))]
    if len(body) == 1:
        return _C.CAPITAL_LETTER_WORD if spaced else _C.UPPER_LETTER
    if body.isupper():
        return _C.UPPER_WORD if spaced else _C.UPPER_PART
    if body[1:].islower():
        return _C.CAPITAL_WORD if spaced else _C.CAPITAL_PART
    return _C.MIXED_WORD if spaced else _C.MIXED


def _mixed(body: str, spaced: bool) -> TokenClass:
    if body[0] in "'\u2019" and body[1:].isalpha():
        return _C.CONTRACTION
    return _C.MIXED_WORD if spaced else _C.MIXED


def _signs(body: str, spaced: bool) -> TokenClass:
    if not body.isascii():
        return _C.SYMBOL
    if len(body) > 1:
        return _C.SPACED_SIGN if spaced else _C.SIGNS
    sign = _SIGNS.get(body, _C.SIGN)
    return _SPACED.get(sign, _C.SPACED_SIGN) if spaced else sign
