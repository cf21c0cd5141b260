"""Word salad where there is only text: recorded traffic, the proxy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from checkengine.detectors.language.expectation import expected_scripts
from checkengine.detectors.salad import SaladBatch, SaladReading, TextPieces, text_tables, text_tokenizer
from checkengine.guards.finding import Severity
from checkengine.guards.salad import KIND, evidence_of
from checkengine.guards.settings import SaladSettings
from checkengine.guards.text import TextFinding, TextStart

PROMPT_CHARACTERS = 2048
"""Read of the prompt's end, for its scripts."""
PROMPT_TOKENIZED = 1280
"""Of them: more than 256 tokens, which is what the batch takes."""
KEPT_TOKENS = 4096
NOTHING: tuple[TextFinding, ...] = ()


class SaladTextGuard:
    """The same evidence as from token ids, over the tokens of a small vocabulary; one finding at most. About 16 KB."""

    name: str = "salad"
    version: int = 2

    def __init__(self, start: TextStart, settings: SaladSettings | None = None) -> None:
        self._id = start.id
        self._batch = SaladBatch(text_tables(), (settings or SaladSettings()).text_evidence, slots=1)
        prompt = start.prompt[-PROMPT_CHARACTERS:].encode("utf-8", "replace").decode()
        ids = text_tokenizer().encode_batch_fast([prompt[-PROMPT_TOKENIZED:]], add_special_tokens=False)[0].ids
        self._slot = self._batch.open(ids, expected_scripts(prompt, start.language))
        self._pieces = TextPieces()
        self._places: list[int] = []
        """Characters at which the last tokens begin: as far back as evidence may have begun."""
        self._first = 0
        self._told = False

    def push(self, piece: str) -> Iterable[TextFinding]:
        return NOTHING if self._told else list(self._read(self._pieces.push(piece)))

    def end(self) -> Iterable[TextFinding]:
        return NOTHING if self._told else list(self._read(self._pieces.end()))

    def _read(self, pieces: Iterator[tuple[list[int], list[int]]]) -> Iterator[TextFinding]:
        for ids, places in pieces:
            self._keep(places)
            if reading := self._push(ids):
                self._told = True
                yield self._finding(reading)
                return

    def _push(self, ids: Sequence[int]) -> SaladReading | None:
        slots = np.full(len(ids), self._slot, np.int64)
        fired = self._batch.push(slots, np.asarray(ids, np.int64))
        return self._batch.reading(self._slot) if len(fired) else None

    def _keep(self, places: list[int]) -> None:
        self._places += places
        if len(self._places) > 4 * KEPT_TOKENS:
            self._first += len(self._places) - KEPT_TOKENS
            del self._places[:-KEPT_TOKENS]

    def _finding(self, reading: SaladReading) -> TextFinding:
        place = min(max(reading.start - self._first, 0), len(self._places) - 1)
        at = {"char": self._places[place]}
        return TextFinding(KIND, self._id, Severity.ERROR, self.name, at, self.version, evidence_of(reading))
