"""Whether tokens inside a word are joined as their tokenizer would join them.

A model learns from text that its tokenizer wrote, so it nearly always writes a word with the tokens that the
tokenizer would take. A sequence of byte-pair tokens is the tokenizer's own exactly if every two neighbours are what
their joined text encodes to. Corrupted attention glues pieces at random ("dominant" "aver" "olescent").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.salad.columns import (
    BEGINS_LETTER,
    EDGE,
    ENDS_LETTER,
    FIRST_PIECE,
    LAST_PIECE,
    LAST_TOKEN,
    TELLS,
    checked,
)
from checkengine.detectors.salad.neighbours import COUNTED, level_of
from checkengine.detectors.vocabulary import Vocabulary

PLACES = 1 << 16
"""Of the cache, by a hash of the pair: a newer pair takes an older one's place."""


class WordJoins:
    """For byte-pair tokenizers, as nearly all models have; for others `available` is False and all pairs agree."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        tokens: NDArray[np.int32],
        counts: NDArray[np.uint8],
        logs: NDArray[np.float32],
    ) -> None:
        self.available = vocabulary.bpe is not None
        self._model = vocabulary.bpe
        self._tables = (tokens, counts, logs)
        self._keys = np.full(PLACES, -1, np.int64)
        self._values = np.zeros(PLACES, np.uint8)
        self._asked: NDArray[np.int64] = np.zeros((64, 2), np.int64)

    def strange(self, slots: NDArray[np.int64], ids: NDArray[np.int64], wholes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """1 where token i and the one before it are parts of one word that the tokenizer cuts elsewhere."""
        found = np.zeros(len(ids), np.uint8)
        if len(self._asked) < len(ids):
            self._asked = np.zeros((2 * len(ids), 2), np.int64)
        asked = look_up(slots, ids, wholes, self._tables, self._keys, self._values, found, self._asked)
        for row, key in self._asked[:asked].tolist():
            found[row] = not self.agree(key >> 32, key & 0xFFFFFFFF)
            place = place_of(key)
            self._keys[place], self._values[place] = key, found[row]
        return found

    def agree(self, previous: int, token: int) -> bool:
        """False where the tokenizer would have cut the two tokens' joined text elsewhere."""
        first, second = self._model.id_to_token(previous), self._model.id_to_token(token)
        if first is None or second is None:
            return True
        return [part.id for part in self._model.tokenize(first + second)] == [previous, token]


@checked
def place_of(key: Any) -> Any:
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(48))


@checked
def look_up(slots: Any, ids: Any, wholes: Any, tables: Any, keys: Any, values: Any, found: Any, asked: Any) -> int:
    """Fills `found` from the cache and `asked` with (row, pair) of what it lacks. Pieces that were neighbours in text
    are joined as text is, and of
    some classes of tokens it tells next to nothing: nobody has to ask."""
    tokens, counts, logs = tables
    count, size = 0, len(tokens) - 1
    for row in range(len(ids)):
        slot, token = slots[row], ids[row]
        if slot < 0 or not 0 <= token < size or not tokens[token, EDGE] & BEGINS_LETTER:
            continue
        before = ids[row - 1] if row and slots[row - 1] == slot else wholes[slot, LAST_TOKEN]
        if not 0 <= before < size or not tokens[before, EDGE] & ENDS_LETTER:
            continue
        if not tokens[before, EDGE] & tokens[token, EDGE] & TELLS:
            continue
        if level_of(tokens[before, LAST_PIECE], tokens[token, FIRST_PIECE], counts, logs) < COUNTED:
            continue
        key = (before << 32) | token
        place = place_of(key)
        if keys[place] == key:
            found[row] = values[place]
        else:
            asked[count, 0], asked[count, 1] = row, key
            count += 1
    return count
