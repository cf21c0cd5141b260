"""Did the prompt ask for what is now repeated?"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

LAST_CHARACTERS = 20_000
"""Of the prompt: where a request stands, and what bounds the search."""
_COUNT = r"(?:\d+|hundred|thousand|many|several|ten|twenty|fifty)"
_ASKS = re.compile(
    r"\brepeat(?:ed|edly|ing)?\b|\bover and over\b|\bagain and again\b|\bin a loop\b|\bnon-?stop\b|\bforever\b"
    rf"|\b{_COUNT}\s+(?:times|copies|lines|rows|repetitions)\b|\btimes\s+\d+\b|\b\d+\s*[x×]\b|\b[x×]\s*\d+\b"
    r"|\b(?:fill|pad)(?:ed|ing)?\b[^.\n]{0,40}\b(?:with|up to|until)\b|\bcopy\b[^.\n]{0,30}\bverbatim\b"
    r"|\b(?:mantra|litany|chant|refrain|chorus)\b"
    r"|\brépèt\w*|\brépét\w*|\b\d+\s+fois\b|\bwiederhol\w*|\b\d+\s*mal\b|\brepit\w*|\b\d+\s+veces\b"
    r"|\bripet\w*|\b\d+\s+volte\b|\b\d+\s+vezes\b|\bповтор\w*|\b\d+\s+раз\b|\btekrar\w*|\b\d+\s+(?:kez|defa|kere)\b"
    r"|\bulang\w*|\b\d+\s+kali\b|\blặp\b|\b\d+\s+lần\b|\bпо\s*вторя\w*|كرر|تكرار|\d+\s*مرة|दोहर|\d+\s*बार"
    r"|重复|重複|\d+\s*次|\d+\s*遍|繰り返|\d+\s*回|반복|\d+\s*번",
    re.IGNORECASE,
)
_STEMS = (
    "repeat", "over and over", "again and again", "in a loop", "nonstop", "non-stop", "forever", "times", "copies",
    "lines", "rows", "repetitions", "fill", "pad", "copy", "mantra", "litany", "chant", "refrain", "chorus", "répèt",
    "répét", "fois", "wiederhol", "mal", "repit", "veces", "ripet", "volte", "vezes", "повтор", "раз", "tekrar", "kez",
    "defa", "kere", "ulang", "kali", "lặp", "lần", "вторя", "كرر", "تكرار", "مرة", "दोहर", "बार", "重复", "重複", "次",
    "遍", "繰り返", "回", "반복", "번",
)  # fmt: skip
"""One of them stands in whatever `_ASKS` finds, but for "3 x"."""
_FACTOR = re.compile(r"\d\s*[x×]|[x×]\s*\d")
AROUND = 96
"""Characters on both sides of such a word that are read."""


def asks_for_repetition(prompt: str) -> bool:
    """True where the prompt's words ask for repetition or for a number of copies, in one of some fifteen languages.

    The whole expression takes a millisecond for 1,000 characters, so it is tried only around words that it may begin or
    end with."""
    text = prompt[-LAST_CHARACTERS:]
    return any(_ASKS.search(text, max(0, first), last) for first, last in _spans(text.lower()))


def _spans(lowered: str) -> list[tuple[int, int]]:
    """Where to look, without overlaps."""
    places = [match.start() for match in _FACTOR.finditer(lowered)]
    for stem in _STEMS:
        at = lowered.find(stem)
        while at >= 0:
            places.append(at)
            at = lowered.find(stem, at + len(stem))
    spans: list[tuple[int, int]] = []
    for place in sorted(places):
        first, last = place - AROUND, place + AROUND
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], last)
        else:
            spans.append((first, last))
    return spans


def holds(prompt: NDArray[np.int32], part: NDArray[np.int32]) -> bool:
    """True where `part` stands in the prompt."""
    return len(part) > 0 and part.tobytes() in _Aligned(prompt.tobytes(), part.itemsize)


class _Aligned:
    """Bytes of an array, searched at whole elements only."""

    def __init__(self, content: bytes, size: int) -> None:
        self._content = content
        self._size = size

    def __contains__(self, part: bytes) -> bool:
        at = self._content.find(part)
        while at >= 0 and at % self._size:
            at = self._content.find(part, at + 1)
        return at >= 0
