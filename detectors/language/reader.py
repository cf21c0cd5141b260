"""Reads one output, character by character, for a turn to a language that nobody asked for.

Two tests run side by side. Letters of a script that the expectation does not hold are counted, and letters of one that
it holds are taken off again. Where the script cannot decide, each word's log-likelihood ratio between the expected
language and every alternative is added up, never below zero (Page's CUSUM, 1954): evidence for one alternative that
goes on over words, not a verdict on each. Quotations, brackets, code, names and single letters weigh little or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.language import kernel
from checkengine.detectors.language.expectation import (
    Expectation,
    expectation_from_start,
    names_language,
    names_script,
)
from checkengine.detectors.language.languages import COLUMN_OF, COLUMNS, NEAR, NO_LANGUAGE
from checkengine.detectors.language.model import NAT, language_model
from checkengine.detectors.language.scripts import Script

CONTEXT = 160
"""Characters before a turn in which a language's name announces it (`In Greek: …`)."""
TAIL = 640
"""Characters kept of what was read."""
LEARNED_FROM = 240
"""Characters of the output that stand in for a prompt which tells no language."""


@dataclass(frozen=True, slots=True)
class LanguageLimits:
    """Evidence in nats; letters for scripts."""

    warn: float = 25.0
    """Evidence against the expected language at which a turn is told…"""
    error: float = 60.0
    """…and at which it has gone on."""
    foreign_letters: int = 6
    """Letters of an unexpected script at which a turn is told (one less for each expected letter between)…"""
    foreign_letters_error: int = 40
    """…and at which it has gone on."""
    clip: float = 4.0
    """Most that one word says…"""
    clip_short: float = 10.0
    """…and one of up to three letters: these hold sentences together, and lists of foreign terms lack them."""
    clip_han: float = 1.25
    """Most that one character of Han or kana says."""
    capital_share: float = 0.375
    """Of `clip`, for a word with a capital: often a name."""
    unexpected_base: float = 0.5
    """What a word must say more than the average of its script, where the script holds no expected language."""
    longest_quotation: int = 400
    """Characters after which a quotation or bracket is taken for the text itself."""
    rests: int = 2
    """Words not looked at after one that speaks for the expected language."""

    def array(self) -> NDArray[np.int64]:
        limits = np.zeros(kernel.LIMITS, np.int64)
        limits[kernel.CLIP] = round(self.clip * NAT)
        limits[kernel.CLIP_SHORT] = round(self.clip_short * NAT)
        limits[kernel.CLIP_HAN] = round(self.clip_han * NAT)
        limits[kernel.CAPITAL_EIGHTHS] = round(self.capital_share * 8)
        limits[kernel.UNEXPECTED_BASE] = round(self.unexpected_base * NAT)
        limits[kernel.WARN], limits[kernel.ERROR] = round(self.warn * NAT), round(self.error * NAT)
        limits[kernel.FOREIGN_WARN], limits[kernel.FOREIGN_ERROR] = self.foreign_letters, self.foreign_letters_error
        limits[kernel.LONGEST_QUOTE], limits[kernel.RESTS] = self.longest_quotation, self.rests
        return limits


@dataclass(frozen=True, slots=True)
class LanguageReading:
    stage: Literal["warning", "error"]
    by: Literal["script", "language"]
    """Which of the two tests told it."""
    start: int
    """Index of the first character of the evidence."""
    end: int
    """Characters read when it was told."""
    foreign: str
    """ISO 639-1 code of the likeliest alternative, or the script's name in lower case."""
    evidence: float
    """Nats (`language`) or letters (`script`)."""


def roles_of(languages: frozenset[str]) -> NDArray[np.uint8]:
    """Shape (candidates,): 1 expected, 2 too near to one that is to count, 0 an alternative."""
    roles = np.zeros(len(COLUMNS), np.uint8)
    for language in languages:
        for near in NEAR.get(language, frozenset()):
            roles[COLUMN_OF[near]] = 2
    for language in (languages & COLUMN_OF.keys()) | {NO_LANGUAGE}:
        roles[COLUMN_OF[language]] = 1
    return roles


def expect(expectation: Expectation, state: NDArray[np.int64], roles: NDArray[np.uint8]) -> None:
    """Sets an output's expectation; where it names no language, none is foreign."""
    state[kernel.EXPECTED] = expectation.scripts
    roles[:] = roles_of(expectation.languages) if expectation.languages else 2


def decide(
    state: NDArray[np.int64], evidence: NDArray[np.int32], roles: NDArray[np.uint8], before: Callable[[int], str]
) -> LanguageReading | None:
    """Takes the kernel's event: a reading, or None where the text before it (`before(start)`) names what follows.

    What is named is expected from there on.
    """
    event, what, start = (int(state[at]) for at in (kernel.EVENT, kernel.EVENT_WHAT, kernel.EVENT_START))
    state[kernel.EVENT] = kernel.NO_EVENT
    if event == kernel.FOREIGN_SCRIPT_SEEN:
        if names_script(before(start), what):
            state[kernel.EXPECTED] |= 1 << what
            state[kernel.FOREIGN] = 0
            return None
        return _reading(state, "script", Script(what).name.lower(), float(state[kernel.FOREIGN]))
    if names_language(before(start), COLUMNS[what]):
        roles[what], evidence[what] = 2, 0
        return None
    return _reading(state, "language", COLUMNS[what], float(evidence[what]) / NAT)


def _reading(
    state: NDArray[np.int64], by: Literal["script", "language"], foreign: str, evidence: float
) -> LanguageReading:
    stage: Literal["warning", "error"] = "error" if state[kernel.WARNED] else "warning"
    state[kernel.ERRED if stage == "error" else kernel.WARNED] = 1
    start, end = int(state[kernel.EVENT_START]), int(state[kernel.CHARACTER])
    return LanguageReading(stage, by, start, end, foreign, evidence)


class LanguageReader:
    """State of one output, about 3 KB. Where pieces are cut changes nothing but when a reading is told."""

    def __init__(self, expectation: Expectation, limits: LanguageLimits | None = None) -> None:
        self._model = language_model()
        self._limits = (limits or LanguageLimits()).array()
        self._state = np.zeros(kernel.FIELDS, np.int64)
        self._word = np.zeros(kernel.WORD, np.uint8)
        self._totals = np.zeros(len(COLUMNS), np.int32)
        self._evidence = np.zeros(len(COLUMNS), np.int32)
        self._starts = np.zeros(len(COLUMNS), np.int64)
        self._roles = roles_of(expectation.languages)
        self._tally = np.zeros(0, np.int64)
        self._tail = ""
        self._expectation = expectation
        self._waiting: str | None = None if expectation.is_known else ""
        self._expect(expectation)

    @property
    def expectation(self) -> Expectation:
        return self._expectation

    def push(self, piece: str) -> list[LanguageReading]:
        if self._state[kernel.ERRED] or self._expectation.anything:
            return []
        if self._waiting is None:
            return self._read(piece)
        wanted = LEARNED_FROM - len(self._waiting)
        self._waiting += piece[:wanted]
        if len(self._waiting) < LEARNED_FROM:
            return []
        return self._learn() + self._read(piece[wanted:])

    def end(self) -> list[LanguageReading]:
        """The output is over; its last word counts."""
        found = self._learn() if self._waiting else []
        if not self._state[kernel.ERRED] and not self._expectation.anything:
            # A line break ends the last word.
            found += self._read("\n")
        return found

    def _expect(self, expectation: Expectation) -> None:
        self._expectation = expectation
        expect(expectation, self._state, self._roles)

    def _learn(self) -> list[LanguageReading]:
        start, self._waiting = self._waiting or "", None
        self._expect(expectation_from_start(start, self._expectation.scripts))
        return self._read(start)

    def _arrays(self) -> tuple[Any, ...]:
        return (
            self._state,
            self._word,
            (self._totals, self._evidence, self._starts, self._roles),
            self._tally,
            self._model,
            self._limits,
        )

    def _read(self, piece: str) -> list[LanguageReading]:
        found: list[LanguageReading] = []
        data = np.frombuffer(piece.encode("utf-8", "surrogatepass"), np.uint8)
        at, kept = 0, self._tail + piece
        oldest = int(self._state[kernel.CHARACTER]) - len(self._tail)

        def before(start: int) -> str:
            first = max(oldest, start - CONTEXT, int(self._state[kernel.CHARACTER]) - TAIL)
            return kept[first - oldest : max(0, start - oldest)]

        while at < len(data) and not self._state[kernel.ERRED]:
            at = kernel.advance(data, at, len(data), *self._arrays())
            if self._state[kernel.EVENT] and (reading := decide(self._state, self._evidence, self._roles, before)):
                found.append(reading)
        self._tail = kept[-TAIL:]
        return found
