"""A text cut into units, wherever its pieces end: words, numbers, signs, characters of unspaced scripts."""

from __future__ import annotations

import re
from functools import lru_cache
from zlib import crc32

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
from checkengine.detectors.repetition.units import CODE_SIGNS, WHOLE, is_blank, letter_weight

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Thai, Lao, Burmese, Khmer, kana, Han: scripts that put no spaces between words."""
_FILLERS = "\u3164\uffa0\u115f\u1160"
"""Letters by category, but nothing is seen of them."""
LONG_WORD = 28
"""Weight of a long word, in sixteenths: tokenizers cut it into several tokens."""
LONGEST = 32
"""Characters of a unit; what is longer goes on in the next one."""
_UNIT = re.compile(
    rf"(?P<fine>[{_UNSPACED}])"
    rf"|(?P<word>[^\W\d_{_UNSPACED}{_FILLERS}][^\W\d_{_UNSPACED}{_FILLERS}]{{0,{LONGEST - 1}}})"
    rf"|(?P<number>\d{{1,{LONGEST}}})"
    rf"|(?P<line>\r?\n)"
    rf"|(?P<space>[^\S\r\n]{{1,{LONGEST}}})"
    rf"|(?P<sign>(?P<one>[^\w\s])(?P=one){{0,7}}|.)",
    re.DOTALL,
)


class TextUnits:
    """Units of a text that comes in pieces. What may go on in the next piece waits: at most 32 characters."""

    def __init__(self) -> None:
        self._waiting = ""
        self._waiting_at = 0
        self.starts: list[int] = []
        """Of the last call's units: the character of the text at which each begins."""

    def push(self, piece: str) -> NDArray[np.int32]:
        """Units that are whole now, shape (n,)."""
        return self._cut(self._waiting + piece, final=False)

    def end(self) -> NDArray[np.int32]:
        """The unit that waited, if any."""
        return self._cut(self._waiting, final=True)

    def _cut(self, text: str, *, final: bool) -> NDArray[np.int32]:
        units, starts, base, done = [], [], self._waiting_at, 0
        for match in _UNIT.finditer(text):
            done = match.start()
            if match.end() == len(text) and not final and match.end() - done < LONGEST:
                break
            done = match.end()
            unit = unit_of(match.lastgroup or "", match[0])
            if unit >= 0:
                units.append(unit)
                starts.append(base + match.start())
        self._waiting = text[done:]
        self._waiting_at = base + done
        self.starts = starts
        return np.array(units, np.int32)


@lru_cache(maxsize=8192)
def unit_of(group: str, text: str) -> int:
    """identity << 9 | kind << 6 | weight; -1 for a single space, which only parts words."""
    if group == "space" and text == " ":
        return -1
    kind, weight = describe(group, text)
    return (crc32(text.encode("utf-8", "surrogatepass")) & ((1 << 31 - UNIT_BITS) - 1)) << UNIT_BITS | (
        kind << WEIGHT_BITS | weight
    )


def describe(group: str, text: str) -> tuple[int, int]:
    if group in ("word", "fine"):
        weight = sum(letter_weight(character) for character in text)
        if ord(text[0]) < 0x250:
            return (WORD if len(text) > 1 else SIGN), min(max(weight, WHOLE), LONG_WORD)
        return WORD, min(max(weight, 2), LONG_WORD)
    if group == "number":
        return NUMBER, WHOLE
    if group == "line":
        return BLANK, WHOLE
    if group == "space":
        return (INDENT if len(text) > 2 or "\t" in text else BLANK), WHOLE
    if all(is_blank(character) for character in text):
        return BLANK, WHOLE
    return (CODE if text[0] in CODE_SIGNS else SIGN), WHOLE
