"""Repetition where there is only text: as `guards.repetition`, on words, numbers, signs and characters."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.repetition import RepetitionReading, RepetitionStreams, TextUnits, readings
from checkengine.guards.finding import Severity
from checkengine.guards.repetition import ENDED, LOOP, Told, evidence_of, limits_of
from checkengine.guards.repetition_request import asks_for_repetition
from checkengine.guards.settings import RepetitionSettings
from checkengine.guards.text import TextFinding, TextStart

BLOCK = 4096
"""Characters that are read at once: a text of 100 MB in one piece is not held a second time."""
MARK = 64
"""Units between two of which the place in the text is kept."""
MARKS = 256


class TextRepetitionGuard:
    """Findings are placed at the first repeated character (to within 64 words, counted back from where it was known).

    State is bounded: 62.3 KiB and 256 places.
    """

    name: str = "repetition"
    version: int = 3

    def __init__(self, start: TextStart, settings: RepetitionSettings) -> None:
        self._start = start
        self._streams = RepetitionStreams(limits_of(settings))
        self._slot: NDArray[np.int64] = np.array([self._streams.open()], np.int64)
        self._units = TextUnits()
        self._told = Told()
        self._count = 0
        self._marks: deque[tuple[int, int]] = deque([(0, 0)], maxlen=MARKS)
        """Number of a unit and the character at which it begins."""

    @cached_property
    def _asked(self) -> bool:
        """Searched for when something is found: most texts hold nothing, and prompts are long."""
        return asks_for_repetition(self._start.prompt)

    def push(self, piece: str) -> Iterable[TextFinding]:
        found: list[TextFinding] = []
        for first in range(0, len(piece), BLOCK):
            found += self._read(self._units.push(piece[first : first + BLOCK]))
        return found

    def end(self) -> Iterable[TextFinding]:
        return self._read(self._units.end())

    def _read(self, units: NDArray[np.int32]) -> list[TextFinding]:
        if not len(units):
            return []
        for number, character in enumerate(self._units.starts, self._count):
            if number % MARK == 0:
                self._marks.append((number, character))
        self._count += len(units)
        events = self._streams.push(self._slot, np.array([len(units)], np.int64), units)
        return [finding for reading in readings(events) for finding in self._findings(reading)]

    def _findings(self, reading: RepetitionReading) -> Iterable[TextFinding]:
        severity = self._told.severity(reading, self._asked)
        if severity is not None:
            kind = ENDED if reading.rule == "recovered" else LOOP
            evidence = evidence_of(reading) | ({"asked": True} if self._asked and severity == Severity.INFO else {})
            at = {"char": self._place(reading.start)}
            yield TextFinding(kind, self._start.id, severity, self.name, at, self.version, evidence)

    def _place(self, unit: int) -> int:
        marks = list(self._marks)
        return marks[max(0, bisect_right(marks, (unit, 1 << 62)) - 1)][1]
