"""Text into tokens of a small vocabulary of this package, the same however the text is split."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from checkengine.detectors.salad.table import SaladTables, text_pairs
from checkengine.detectors.salad.text_vocabulary import text_tokenizer
from checkengine.detectors.vocabulary import Vocabulary

LONGEST = 256
"""Characters without a blank that are read at once: what is longer is cut."""
SLICE = 1 << 13
"""Characters taken in at once."""
_BOUNDARY = re.compile(r"(?<=\S)(?= \S)")
"""Before a single blank between two words: every tokenizer cuts there."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@cache
def text_tables() -> SaladTables:
    return SaladTables(Vocabulary.from_tokenizer(text_tokenizer()), text_pairs())


class TextPieces:
    """Tokens of a growing text, each with the index of its first character. Keeps less than two words of text."""

    def __init__(self) -> None:
        self._tokenizer = text_tokenizer()
        self._rest = ""
        self._at = 0

    def push(self, text: str) -> Iterator[tuple[list[int], list[int]]]:
        """Token ids and their characters, of all that no later text can change."""
        for first in range(0, len(text), SLICE):
            self._rest += _SURROGATE.sub("\ufffd", text[first : first + SLICE])
            while (cut := self._cut()) is not None:
                yield self._take(cut)

    def end(self) -> Iterator[tuple[list[int], list[int]]]:
        if self._rest:
            yield self._take(len(self._rest))

    def _cut(self) -> int | None:
        """Where the text may be cut now: at its first boundary, or after LONGEST characters without one."""
        if len(self._rest) < 2:
            return None
        last = 0
        for match in _BOUNDARY.finditer(self._rest):
            if match.start() - last > LONGEST:
                break
            last = match.start()
        if last:
            return last
        return LONGEST if len(self._rest) > LONGEST + 1 else None

    def _take(self, cut: int) -> tuple[list[int], list[int]]:
        encoded = self._tokenizer.encode(self._rest[:cut], add_special_tokens=False)
        places = [self._at + first for first, _ in encoded.offsets]
        self._at += cut
        self._rest = self._rest[cut:]
        return encoded.ids, places
