"""Unicode scripts of characters and of pieces of UTF-8, as small numbers that fit a table."""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray


class Script(IntEnum):
    """COMMON belongs to no script (digits, punctuation, symbols, emoji); PARTIAL is a piece of a
    character whose bytes do not tell the script."""

    COMMON = 0
    PARTIAL = 1
    LATIN = 2
    GREEK = 3
    CYRILLIC = 4
    ARMENIAN = 5
    HEBREW = 6
    ARABIC = 7
    SYRIAC = 8
    THAANA = 9
    DEVANAGARI = 10
    BENGALI = 11
    GURMUKHI = 12
    GUJARATI = 13
    ORIYA = 14
    TAMIL = 15
    TELUGU = 16
    KANNADA = 17
    MALAYALAM = 18
    SINHALA = 19
    THAI = 20
    LAO = 21
    TIBETAN = 22
    MYANMAR = 23
    GEORGIAN = 24
    HANGUL = 25
    ETHIOPIC = 26
    CHEROKEE = 27
    KHMER = 28
    MONGOLIAN = 29
    KANA = 30
    HAN = 31
    OTHER = 32


_S = Script
_BLOCKS: tuple[tuple[int, int, Script], ...] = (
    (0x41, 0x5A, _S.LATIN),
    (0x61, 0x7A, _S.LATIN),
    (0xAA, 0xAA, _S.LATIN),
    (0xBA, 0xBA, _S.LATIN),
    (0xC0, 0xD6, _S.LATIN),
    (0xD8, 0xF6, _S.LATIN),
    (0xF8, 0x24F, _S.LATIN),
    (0x370, 0x373, _S.GREEK),
    (0x376, 0x377, _S.GREEK),
    (0x37B, 0x37D, _S.GREEK),
    (0x37F, 0x37F, _S.GREEK),
    (0x386, 0x386, _S.GREEK),
    (0x388, 0x3FF, _S.GREEK),
    (0x400, 0x52F, _S.CYRILLIC),
    (0x531, 0x587, _S.ARMENIAN),
    (0x591, 0x5F4, _S.HEBREW),
    (0x610, 0x61A, _S.ARABIC),
    (0x620, 0x65F, _S.ARABIC),
    (0x66E, 0x6FF, _S.ARABIC),
    (0x700, 0x74F, _S.SYRIAC),
    (0x750, 0x77F, _S.ARABIC),
    (0x780, 0x7BF, _S.THAANA),
    (0x7C0, 0x89F, _S.OTHER),
    (0x8A0, 0x8FF, _S.ARABIC),
    (0x900, 0x963, _S.DEVANAGARI),
    (0x966, 0x97F, _S.DEVANAGARI),
    (0x980, 0x9FF, _S.BENGALI),
    (0xA00, 0xA7F, _S.GURMUKHI),
    (0xA80, 0xAFF, _S.GUJARATI),
    (0xB00, 0xB7F, _S.ORIYA),
    (0xB80, 0xBFF, _S.TAMIL),
    (0xC00, 0xC7F, _S.TELUGU),
    (0xC80, 0xCFF, _S.KANNADA),
    (0xD00, 0xD7F, _S.MALAYALAM),
    (0xD80, 0xDFF, _S.SINHALA),
    (0xE01, 0xE3A, _S.THAI),
    (0xE40, 0xE5B, _S.THAI),
    (0xE80, 0xEFF, _S.LAO),
    (0xF00, 0xFFF, _S.TIBETAN),
    (0x1000, 0x109F, _S.MYANMAR),
    (0x10A0, 0x10FF, _S.GEORGIAN),
    (0x1100, 0x11FF, _S.HANGUL),
    (0x1200, 0x139F, _S.ETHIOPIC),
    (0x13A0, 0x13FF, _S.CHEROKEE),
    (0x1400, 0x177F, _S.OTHER),
    (0x1780, 0x17FF, _S.KHMER),
    (0x1800, 0x18AF, _S.MONGOLIAN),
    (0x18B0, 0x19DF, _S.OTHER),
    (0x19E0, 0x19FF, _S.KHMER),
    (0x1A00, 0x1C4F, _S.OTHER),
    (0x1C50, 0x1C7F, _S.OTHER),
    (0x1C80, 0x1C8F, _S.CYRILLIC),
    (0x1C90, 0x1CBF, _S.GEORGIAN),
    (0x1CC0, 0x1CFF, _S.OTHER),
    (0x1D00, 0x1D25, _S.LATIN),
    (0x1D6B, 0x1D77, _S.LATIN),
    (0x1D79, 0x1DBE, _S.LATIN),
    (0x1E00, 0x1EFF, _S.LATIN),
    (0x1F00, 0x1FFF, _S.GREEK),
    (0x2C60, 0x2C7F, _S.LATIN),
    (0x2C80, 0x2CFF, _S.OTHER),
    (0x2D00, 0x2D2F, _S.GEORGIAN),
    (0x2D30, 0x2D7F, _S.OTHER),
    (0x2D80, 0x2DDF, _S.ETHIOPIC),
    (0x2DE0, 0x2DFF, _S.CYRILLIC),
    (0x2E80, 0x2FDF, _S.HAN),
    (0x3005, 0x3007, _S.HAN),
    (0x3021, 0x3029, _S.HAN),
    (0x3041, 0x3096, _S.KANA),
    (0x309D, 0x30FA, _S.KANA),
    (0x30FC, 0x30FF, _S.KANA),
    (0x3100, 0x312F, _S.OTHER),
    (0x3131, 0x318E, _S.HANGUL),
    (0x31A0, 0x31BF, _S.OTHER),
    (0x31F0, 0x31FF, _S.KANA),
    (0x3400, 0x4DBF, _S.HAN),
    (0x4E00, 0x9FFF, _S.HAN),
    (0xA000, 0xA4CF, _S.OTHER),
    (0xA4D0, 0xA63F, _S.OTHER),
    (0xA640, 0xA69F, _S.CYRILLIC),
    (0xA722, 0xA787, _S.LATIN),
    (0xA78B, 0xA7FF, _S.LATIN),
    (0xA800, 0xA8DF, _S.OTHER),
    (0xA8E0, 0xA8FF, _S.DEVANAGARI),
    (0xA900, 0xA95F, _S.OTHER),
    (0xA960, 0xA97F, _S.HANGUL),
    (0xA980, 0xA9DF, _S.OTHER),
    (0xA9E0, 0xA9FF, _S.MYANMAR),
    (0xAA00, 0xAA5F, _S.OTHER),
    (0xAA60, 0xAA7F, _S.MYANMAR),
    (0xAA80, 0xAAFF, _S.OTHER),
    (0xAB00, 0xAB2F, _S.ETHIOPIC),
    (0xAB30, 0xAB5A, _S.LATIN),
    (0xAB5C, 0xAB69, _S.LATIN),
    (0xAB65, 0xAB65, _S.GREEK),
    (0xAB70, 0xABBF, _S.CHEROKEE),
    (0xABC0, 0xABFF, _S.OTHER),
    (0xAC00, 0xD7FF, _S.HANGUL),
    (0xF900, 0xFAFF, _S.HAN),
    (0xFB00, 0xFB06, _S.LATIN),
    (0xFB13, 0xFB17, _S.ARMENIAN),
    (0xFB1D, 0xFB4F, _S.HEBREW),
    (0xFB50, 0xFD3D, _S.ARABIC),
    (0xFD50, 0xFDFF, _S.ARABIC),
    (0xFE70, 0xFEFC, _S.ARABIC),
    (0xFF21, 0xFF3A, _S.LATIN),
    (0xFF41, 0xFF5A, _S.LATIN),
    (0xFF66, 0xFF9D, _S.KANA),
    (0xFFA0, 0xFFDC, _S.HANGUL),
    (0x10000, 0x1BFFF, _S.OTHER),
    (0x20000, 0x323AF, _S.HAN),
)
_STARTS = [first for first, _, _ in _BLOCKS]


def script_of(character: str) -> Script:
    """The script of one character, by Unicode block; COMMON where no block claims it."""
    code = ord(character)
    at = bisect_right(_STARTS, code) - 1
    if at >= 0 and code <= _BLOCKS[at][1]:
        return _BLOCKS[at][2]
    return Script.COMMON


@cache
def script_table() -> NDArray[np.uint8]:
    """`script_of` of every code point up to the last block; shape (last code point + 1,)."""
    table = np.zeros(_BLOCKS[-1][1] + 1, np.uint8)
    for first, last, script in _BLOCKS:
        table[first : last + 1] = script
    table.flags.writeable = False
    return table


def scripts_of(text: str) -> int:
    """Bit mask (1 << script) of the scripts in a text; COMMON and PARTIAL are left out."""
    mask = 0
    for character in set(text):
        mask |= 1 << script_of(character)
    return mask & ~((1 << Script.COMMON) | (1 << Script.PARTIAL))


def script_of_piece(piece: bytes) -> Script:
    """The script of a token's bytes; a foreign letter outweighs Latin ones beside it."""
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        return _script_of_fragment(piece)
    found = {script_of(character) for character in text} - {Script.COMMON}
    return max(found, default=Script.COMMON)


def _script_of_fragment(piece: bytes) -> Script:
    """Whole characters inside the piece decide; else the first lead byte, where it is unambiguous."""
    found = {script_of(character) for character in piece.decode("utf-8", errors="ignore")} - {Script.COMMON}
    if found:
        return max(found)
    for at, byte in enumerate(piece):
        if byte >= 0xC2:
            if piece[at : at + 2] == b"\xf0\x9f":
                return Script.COMMON
            return _script_of_lead(byte, piece[at + 1] if at + 1 < len(piece) else None)
    return Script.PARTIAL


def _script_of_lead(lead: int, following: int | None) -> Script:
    """The script that all characters with these first bytes share, else PARTIAL."""
    if lead in _LEADS:
        return _LEADS[lead]
    if following is None or not 0x80 <= following < 0xC0 or not 0xE0 <= lead < 0xF0:
        return Script.PARTIAL
    first = ((lead & 0x0F) << 12) | ((following & 0x3F) << 6)
    ends = {script_of(chr(code)) for code in (first, first + 0x20, first + 0x3F) if code >= 0x80} - {Script.COMMON}
    return ends.pop() if len(ends) == 1 else Script.PARTIAL


_LEADS = {
    0xC2: Script.COMMON,
    0xE2: Script.COMMON,
    **dict.fromkeys(range(0xC3, 0xCA), Script.LATIN),
    **dict.fromkeys((0xCE, 0xCF), Script.GREEK),
    **dict.fromkeys(range(0xD0, 0xD4), Script.CYRILLIC),
    0xD5: Script.ARMENIAN,
    0xD7: Script.HEBREW,
    **dict.fromkeys(range(0xD8, 0xDC), Script.ARABIC),
    **dict.fromkeys(range(0xE4, 0xEA), Script.HAN),
    **dict.fromkeys((0xEB, 0xEC), Script.HANGUL),
}
