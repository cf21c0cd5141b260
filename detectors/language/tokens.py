"""The reader of a whole batch: one compiled call a step over the token ids of all rows.

A row's tokens are read a few at a time; at once where a token's script is foreign to the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.compiled import compiled
from checkengine.detectors.language import kernel
from checkengine.detectors.language.expectation import Expectation, expectation_from_start
from checkengine.detectors.language.languages import COLUMNS
from checkengine.detectors.language.model import language_model
from checkengine.detectors.language.reader import CONTEXT, LanguageLimits, LanguageReading, decide, expect

KEPT = 256
"""Latest tokens that are kept of each row: where evidence began, and what stood before it."""
TOGETHER, TEXT = 16, 512
"""Tokens and bytes that one call reads."""
GROUP = 8
"""Tokens that are read together: a reading is told so many tokens later at most, at its true place."""
LEARNED_FROM = 64
"""Tokens of an output that stand in for a prompt which tells no language."""
WRITTEN, READ, BYTE, LEARN_AT = range(4)


@compiled
def foreign_rows(tokens: Any, ends: Any, slots: Any, scripts: Any, familiar: Any, foreign: Any) -> Any:
    """The look-up of the script stage, for all tokens of a step; returns how many rows hold a foreign one.

    `tokens[ends[i - 1]:ends[i]]` are row i's; `scripts` is `Vocabulary.script`; `familiar[slot]` is a bit mask;
    `foreign[i]` becomes the index in `tokens` of the row's first foreign token, or -1.
    """
    first, rows = 0, 0
    for row in range(len(slots)):
        mask = familiar[slots[row]]
        foreign[row] = -1
        for at in range(first, ends[row]):
            token = tokens[at]
            script = scripts[token] if 0 <= token < len(scripts) else 0
            if not (mask >> script) & 1:
                foreign[row] = at
                rows += 1
                break
        first = ends[row]
    return rows


@compiled
def _gather(counts: Any, kept: Any, slot: Any, table: Any, text: Any, stops: Any) -> Any:
    """Bytes of the tokens to read, in one piece; `stops[i]` is where the i-th of them ends. Returns how many."""
    pieces, offsets = table
    size, count, skipped = 0, 0, counts[slot, BYTE]
    for at in range(counts[slot, READ], min(counts[slot, WRITTEN], counts[slot, READ] + len(stops))):
        token = kept[slot, at % KEPT]
        if 0 <= token < len(offsets) - 1:
            first, last = offsets[token] + skipped, offsets[token + 1]
            if size + last - first > len(text):
                break
            for byte in range(first, last):
                text[size] = pieces[byte]
                size += 1
        stops[count], skipped = size, 0
        count += 1
    return count


@compiled
def count_characters(data: Any, at: Any, end: Any, character: Any, need: Any) -> Any:
    """Characters, and bytes that the last one still needs, after these bytes; as `kernel.advance` counts them."""
    while at < end:
        byte = data[at]
        at += 1
        if byte < 0x80:
            character, need = character + 1, 0
        elif byte >= 0xC0:
            need = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        elif need > 0:
            need -= 1
            character += 1 if need == 0 else 0
    return character, need


@compiled
def _settle(counts: Any, state: Any, marks: Any, text: Any, stops: Any, count: Any, come: Any, before: Any) -> None:
    """Notes the characters after each token that was read: `come` bytes of `text`. `before` is what was known when
    reading began: characters read, and bytes that the last of them still needed."""
    character, need = before
    first = 0
    for index in range(count):
        stop = stops[index]
        at = counts[READ] % KEPT
        if state[kernel.EVENT] and come <= stop:
            counts[BYTE] += come - first
            marks[at] = state[kernel.CHARACTER]
            return
        character, need = count_characters(text, first, stop, character, need)
        marks[at], counts[BYTE], first = character, 0, stop
        counts[READ] += 1


@compiled
def _read_row(counts: Any, rows: Any, slot: Any, table: Any, shared: Any, tally: Any, model: Any, limits: Any) -> Any:
    """Reads what a row has kept; stops at an event, in mid token where it must."""
    states, words, evidence, starts, roles, kept, marks = rows
    totals, text, stops = shared
    state, word = states[slot], words[slot]
    arrays = (totals, evidence[slot], starts[slot], roles[slot])
    while counts[slot, READ] < counts[slot, WRITTEN]:
        count = _gather(counts, kept, slot, table, text, stops)
        before = (state[kernel.CHARACTER], state[kernel.NEED])
        come = kernel.advance(text, 0, stops[count - 1], state, word, arrays, tally, model, limits)
        _settle(counts[slot], state, marks[slot], text, stops, count, come, before)
        if state[kernel.EVENT]:
            return True
    return False


@compiled
def advance_rows(
    slots: Any,
    ends: Any,
    tokens: Any,
    urgent: Any,
    seen: Any,
    counts: Any,
    rows: Any,
    table: Any,
    shared: Any,
    tally: Any,
    model: Any,
    limits: Any,
) -> Any:
    """Keeps each row's new tokens and reads where enough have come; `seen[i]` is 1 for an event, 2 for a row whose
    language can now be learned from its own start. Returns how many are not 0."""
    kept, first, found = rows[5], 0, 0
    for row in range(len(slots)):
        slot, seen[row] = slots[row], 0
        for at in range(first, ends[row]):
            kept[slot, counts[slot, WRITTEN] % KEPT] = tokens[at]
            counts[slot, WRITTEN] += 1
            # Rows take turns, so that no step reads all of them.
            is_turn = (counts[slot, WRITTEN] + slot) % GROUP == 0
            # After an event the rest of the row waits until that is decided: more than is kept cannot come in a step.
            is_due = seen[row] == 0 and (is_turn or urgent[row] >= 0)
            if is_due and _read_row(counts, rows, slot, table, shared, tally, model, limits):
                seen[row] = 1
        if seen[row] == 0 and 0 < counts[slot, LEARN_AT] <= counts[slot, WRITTEN]:
            seen[row] = 2
        found += seen[row] > 0
        first = ends[row]
    return found


class TokenReader:
    """`pieces` are the bytes of each token id (special ones: none). About 6 KB a slot; the caller hands out slots,
    small numbers that it uses again."""

    def __init__(self, pieces: Sequence[bytes], limits: LanguageLimits | None = None) -> None:
        self._model = language_model()
        self._limits = (limits or LanguageLimits()).array()
        offsets = np.cumsum([0, *(len(piece) for piece in pieces)], dtype=np.int64)
        self._table = (np.frombuffer(b"".join(pieces) or b"\0", np.uint8), offsets)
        self._pieces = pieces
        longest = max(map(len, pieces), default=0)
        self._shared = (
            np.zeros(len(COLUMNS), np.int32),
            np.zeros(max(TEXT, longest), np.uint8),
            np.zeros(TOGETHER, np.int64),
        )
        """What all rows write into in turn: a word's totals, text and where its tokens end."""
        self._tally = np.zeros(0, np.int64)
        self._counts = np.zeros((0, 4), np.int64)
        self._rows = _rows(0)

    def begin(self, slot: int, expectation: Expectation) -> None:
        """A new output takes the slot."""
        while slot >= len(self._counts):
            self._grow()
        self._counts[slot] = 0
        for array in self._rows[:4]:
            array[slot] = 0
        self._counts[slot, LEARN_AT] = 0 if expectation.is_known else LEARNED_FROM
        expect(expectation, self._rows[0][slot], self._rows[4][slot])

    def push(
        self,
        slots: NDArray[np.int64],
        ends: NDArray[np.int64],
        tokens: NDArray[np.int64],
        urgent: NDArray[np.int64],
    ) -> list[tuple[int, LanguageReading]]:
        """Row i's new tokens are `tokens[ends[i - 1]:ends[i]]`; it is read at once where `urgent[i]` is not negative.

        Returns readings with their rows; `start` and `end` count output tokens here.
        """
        seen = np.zeros(len(slots), np.int8)
        if not self._advance(slots, ends, tokens, urgent, seen):
            return []
        found: list[tuple[int, LanguageReading]] = []
        for row in np.flatnonzero(seen).tolist():
            slot = int(slots[row])
            if seen[row] == 2:
                self._learn(slot)
            else:
                found += [(row, reading) for reading in self._decided(slot)]
        return found

    def _advance(self, *step: NDArray[np.int64] | NDArray[np.int8]) -> int:
        return int(
            advance_rows(
                *step, self._counts, self._rows, self._table, self._shared, self._tally, self._model, self._limits
            )
        )

    def _decided(self, slot: int) -> list[LanguageReading]:
        state, evidence, roles = self._rows[0][slot], self._rows[2][slot], self._rows[4][slot]
        found: list[LanguageReading] = []
        more = True
        while more:
            reading = decide(state, evidence, roles, lambda start: self._before(slot, start))
            if reading is not None:
                found.append(self._by_token(slot, reading))
            more = _read_row(
                self._counts, self._rows, slot, self._table, self._shared, self._tally, self._model, self._limits
            )
        return found

    def _learn(self, slot: int) -> None:
        self._counts[slot, LEARN_AT] = 0
        scripts = int(self._rows[0][slot, kernel.EXPECTED])
        text = b"".join(self._pieces[token] for _, token in self._kept(slot)).decode("utf-8", "replace")
        expect(expectation_from_start(text, scripts), self._rows[0][slot], self._rows[4][slot])

    def _kept(self, slot: int) -> list[tuple[int, int]]:
        """Index and id of the tokens that are kept and read, oldest first."""
        read = min(int(self._counts[slot, READ]) + 1, int(self._counts[slot, WRITTEN]))
        first = max(0, int(self._counts[slot, WRITTEN]) - KEPT)
        tokens = ((at, int(self._rows[5][slot, at % KEPT])) for at in range(first, read))
        return [(at, token) for at, token in tokens if 0 <= token < len(self._pieces)]

    def _before(self, slot: int, start: int) -> str:
        marks = self._rows[6][slot]
        pieces = [self._pieces[token] for at, token in self._kept(slot) if marks[at % KEPT] <= start]
        return b"".join(pieces).decode("utf-8", "replace")[-CONTEXT:]

    def _by_token(self, slot: int, reading: LanguageReading) -> LanguageReading:
        marks = self._rows[6][slot]
        kept = [at for at, _ in self._kept(slot)]
        # A character may begin in a token that does not end it.
        start = next(
            (at for at in kept if marks[at % KEPT] > reading.start or (at and marks[(at - 1) % KEPT] == reading.start)),
            kept[-1] if kept else 0,
        )
        end = int(self._counts[slot, READ]) + 1
        return LanguageReading(reading.stage, reading.by, start, end, reading.foreign, reading.evidence)

    def _grow(self) -> None:
        more = max(16, len(self._counts))
        self._counts = np.concatenate((self._counts, np.zeros((more, 4), np.int64)))
        self._rows = tuple(np.concatenate(pair) for pair in zip(self._rows, _rows(more), strict=True))


def _rows(size: int) -> tuple[NDArray[np.generic], ...]:
    """State, word, evidence, starts, roles, kept tokens, and the characters read after each of these."""
    columns = len(COLUMNS)
    shapes = (
        (kernel.FIELDS, np.int64),
        (kernel.WORD, np.uint8),
        (columns, np.int32),
        (columns, np.int64),
        (columns, np.uint8),
        (KEPT, np.int64),
        (KEPT, np.int64),
    )
    return tuple(np.zeros((size, width), kind) for width, kind in shapes)
