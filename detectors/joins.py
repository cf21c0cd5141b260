"""Whether tokens inside a word are joined as their tokenizer would join them.

A model learns from text that its tokenizer wrote, so it nearly always writes a word with the tokens
that the tokenizer would take. A sequence of byte-pair tokens is the tokenizer's own exactly if every
two neighbours are what their joined text encodes to. Corrupted attention glues pieces at random
("dominant" "aver" "olescent"), and such pairs are soon not the tokenizer's own.
"""

from __future__ import annotations

from checkengine.detectors.vocabulary import Vocabulary

_CACHE_LIMIT = 1 << 18


class WordJoins:
    """For byte-pair tokenizers, as nearly all models have; for others `available` is False and all pairs agree."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.available = vocabulary.bpe is not None
        self._model = vocabulary.bpe
        outside = vocabulary.special | set(vocabulary.added.values())
        self._begins = bytearray(len(vocabulary))
        self._ends = bytearray(len(vocabulary))
        for token, piece in enumerate(vocabulary.pieces):
            text = _text(piece)
            if text and token not in outside:
                self._begins[token] = text[0].isalpha()
                self._ends[token] = text[-1].isalpha()
        self._known: dict[int, bool] = {}

    def inside_word(self, previous: int, token: int) -> bool:
        """Whether a letter of the one meets a letter of the other."""
        inside = 0 <= token < len(self._begins) and 0 <= previous < len(self._ends)
        return inside and bool(self._begins[token] and self._ends[previous])

    def agree(self, previous: int, token: int) -> bool:
        """False where both are parts of one word and the tokenizer would have cut it elsewhere."""
        if not (self.available and self.inside_word(previous, token)):
            return True
        pair = (previous << 32) | token
        known = self._known.get(pair)
        if known is None:
            if len(self._known) >= _CACHE_LIMIT:
                self._known.clear()
            known = self._known[pair] = self._encodes_to_itself(previous, token)
        return known

    def _encodes_to_itself(self, previous: int, token: int) -> bool:
        written = self._model.tokenize(self._model.id_to_token(previous) + self._model.id_to_token(token))
        return [part.id for part in written] == [previous, token]


def _text(piece: bytes) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return ""
