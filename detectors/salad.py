"""Word salad: text that no model writes in its right mind, told from its tokens alone.

Corrupted attention leaves the model's habits at the level of tokens: it repeats a word at once, glues
pieces of words that its tokenizer would not join, strings pieces into endless words, breaks off
characters, and jumps to scripts that nobody asked for. Each of these is rare in healthy output, so
each adds the logarithm of how much more frequent it is in salad (a CUSUM of log-likelihood ratios,
Page 1954); ordinary tokens take a little away. Rates were measured on SmolLM2-135M: healthy sampling
at temperatures 0, 0.7 and 1 against attention that reads one foreign slot a layer.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from checkengine.detectors.joins import WordJoins
from checkengine.detectors.language.scripts import Script
from checkengine.detectors.utf8 import Utf8Stream, Utf8Table
from checkengine.detectors.vocabulary import Vocabulary

_WORD, _BEGINS_RUN, _ENDS_RUN = 1, 2, 4
_COMMA, _OPENED, _NEWLINE, _LETTER, _SPACE, _SPACE_LETTER, _HARD_SPACE = 8, 16, 32, 64, 128, 256, 512
_MAY_BE_ODD = _COMMA | _OPENED | _NEWLINE
_FORGET_AFTER = 24
"""Tokens after which the same word may be evidence again: a refrain is not salad, it is repetition."""
_FORGET_SPACE_AFTER = 32
"""Likewise for each kind of odd space: whole files are written without a space after the comma."""


@dataclass(frozen=True, slots=True)
class SaladLimits:
    """Weights are natural logarithms of (rate in salad / rate in healthy text); `threshold` is their sum to report.
    Repeated words alone, as in a song, add up to `repeats_at_most` only: below the threshold."""

    threshold: float = 10.0
    ordinary: float = -0.15
    again_at_once: float = 4.5
    again_after_one: float = 3.0
    repeats_at_most: float = 8.0
    strange_join: float = 3.0
    long_word: float = 2.5
    broken_character: float = 5.0
    foreign_script: float = 3.0
    odd_space: float = 4.0
    """A letter right after a comma, a space after an opening bracket or before a line's first word, a hard space."""
    long_word_pieces: int = 6


@dataclass(frozen=True, slots=True)
class SaladReading:
    """`start` is the output token at which the evidence began to add up; the counts are since then."""

    start: int
    evidence: float
    repeated_words: int
    strange_joins: int
    long_words: int
    broken_characters: int
    foreign_scripts: int
    odd_spaces: int


class SaladTables:
    """What is made once a tokenizer and shared by all sequences."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.joins = WordJoins(vocabulary)
        self.utf8 = Utf8Table(vocabulary.pieces)
        self.script = bytes(vocabulary.script)
        self.flags = array("H", bytes(2 * len(vocabulary)))
        for token, piece in enumerate(vocabulary.pieces):
            run_ends = _ENDS_RUN if token in vocabulary.special else 0
            self.flags[token] = _flags_of(piece) | run_ends | (_WORD if vocabulary.words[token] else 0)


def _flags_of(piece: bytes) -> int:
    first, second, last = piece[:1], piece[1:2], piece[-1:]
    return (
        (_BEGINS_RUN if first.isspace() else 0)
        | (_ENDS_RUN if last.isspace() else 0)
        | (_COMMA if last in (b",", b";") else 0)
        | (_OPENED if last in (b"(", b"[", b"{") else 0)
        | (_NEWLINE if last == b"\n" else 0)
        | (_LETTER if first.isalpha() else 0)
        | (_SPACE if first == b" " else 0)
        | (_SPACE_LETTER if first == b" " and second.isalpha() else 0)
        | (_HARD_SPACE if b"\xc2\xa0" in piece else 0)
    )


class SaladDetector:
    """State of one sequence; `expected` is a bit mask of scripts as of `expected_scripts`."""

    def __init__(self, tables: SaladTables, expected: int, limits: SaladLimits | None = None) -> None:
        self._tables = tables
        self._limits = limits or SaladLimits()
        self._expected = expected | (1 << Script.COMMON) | (1 << Script.PARTIAL)
        self._utf8 = Utf8Stream(tables.utf8)
        self._count = 0
        self._last = self._last_but_one = -1
        self._last_flags = 0
        self._pieces = 0
        self._strange_run = False
        self._repeated: dict[int, int] = {}
        self._scripts = 0
        self._evidence = 0.0
        self._repeat_evidence = 0.0
        self._start = 0
        self._counts = [0, 0, 0, 0, 0, 0]
        self._odd_seen = [-_FORGET_SPACE_AFTER] * 4

    def push(self, token: int) -> SaladReading | None:
        """Takes the next output token."""
        tables = self._tables
        self._count += 1
        if not 0 <= token < len(tables.flags):
            self._last_but_one, self._last, self._last_flags = self._last, -1, 0
            return None
        flags = tables.flags[token]
        weight = self._joined(token, flags)
        if self._last_flags & _MAY_BE_ODD or flags & _HARD_SPACE:
            weight += self._odd_space(self._last_flags, flags)
        self._last_flags = flags
        if flags & _WORD and (token == self._last or token == self._last_but_one):
            weight += self._again(token)
        if self._utf8.push(token):
            weight += self._note(3, self._limits.broken_character)
        script = tables.script[token]
        if not (self._expected >> script) & 1 and not (self._scripts >> script) & 1:
            self._scripts |= 1 << script
            weight += self._note(4, self._limits.foreign_script)
        self._last_but_one, self._last = self._last, token
        if not weight and not self._evidence:
            return None
        return self._add(weight or self._limits.ordinary)

    def _joined(self, token: int, flags: int) -> float:
        """A run is what stands between white space; it counts as one strange join and one long word at most."""
        tables, weight = self._tables, 0.0
        if flags & _BEGINS_RUN or self._last < 0 or tables.flags[self._last] & _ENDS_RUN:
            self._pieces, self._strange_run = 1, False
            return 0.0
        if not tables.joins.inside_word(self._last, token):
            self._pieces = min(self._pieces, 1)
            return 0.0
        self._pieces += 1
        if self._pieces == self._limits.long_word_pieces:
            weight += self._note(2, self._limits.long_word)
        if not self._strange_run and not tables.joins.agree(self._last, token):
            self._strange_run = True
            weight += self._note(1, self._limits.strange_join)
        return weight

    def _odd_space(self, before: int, flags: int) -> float:
        if flags & _HARD_SPACE:
            kind = 0
        elif before & _COMMA and flags & _LETTER:
            kind = 1
        elif before & _OPENED and flags & _SPACE:
            kind = 2
        elif before & _NEWLINE and flags & _SPACE_LETTER:
            kind = 3
        else:
            return 0.0
        seen, self._odd_seen[kind] = self._odd_seen[kind], self._count
        return self._note(5, self._limits.odd_space) if self._count - seen >= _FORGET_SPACE_AFTER else 0.0

    def _again(self, token: int) -> float:
        known = self._repeated.get(token, -_FORGET_AFTER)
        self._repeated[token] = self._count
        if self._count - known < _FORGET_AFTER:
            return 0.0
        if len(self._repeated) > 2 * _FORGET_AFTER:
            oldest = self._count - _FORGET_AFTER
            self._repeated = {word: seen for word, seen in self._repeated.items() if seen >= oldest}
        limits = self._limits
        weight = limits.again_at_once if token == self._last else limits.again_after_one
        weight = min(weight, limits.repeats_at_most - self._repeat_evidence)
        self._repeat_evidence += weight
        return self._note(0, weight)

    def _note(self, kind: int, weight: float) -> float:
        self._counts[kind] += 1
        return weight

    def _add(self, weight: float) -> SaladReading | None:
        if not self._evidence:
            self._start = self._count - 1
        self._evidence += weight
        if self._evidence <= 0.0:
            self._evidence, self._repeat_evidence = 0.0, 0.0
            self._scripts, self._counts = 0, [0, 0, 0, 0, 0, 0]
        if self._evidence < self._limits.threshold:
            return None
        return SaladReading(self._start, self._evidence, *self._counts)
