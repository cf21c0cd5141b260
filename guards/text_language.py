"""The language guard where there is only text: recorded traffic, the proxy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checkengine.detectors.language import LanguageReader, LanguageReading, expectation_of
from checkengine.guards.language import SEVERITY, limits_of
from checkengine.guards.settings import LanguageSettings
from checkengine.guards.text import TextFinding, TextStart

KIND = "language.switch"


class LanguageTextGuard:
    """A completion that turns to a language or script that its request does not ask for: first a warning, then, where
    it goes on, an error; each once. About 5 KB."""

    name: str = "language"
    version: int = 2

    def __init__(self, start: TextStart, settings: LanguageSettings | None = None) -> None:
        self._id = start.id
        self._reader = LanguageReader(
            expectation_of(start.prompt, start.language), limits_of(settings or LanguageSettings())
        )

    def push(self, piece: str) -> Iterable[TextFinding]:
        return self._findings(self._reader.push(piece))

    def end(self) -> Iterable[TextFinding]:
        return self._findings(self._reader.end())

    def _findings(self, readings: Sequence[LanguageReading]) -> list[TextFinding]:
        return [self._finding(reading) for reading in readings]

    def _finding(self, reading: LanguageReading) -> TextFinding:
        """Evidence: `foreign` and `expected` are ISO 639-1 codes (or a script's name), `told_at` a character."""
        expected = self._reader.expectation.languages
        return TextFinding(
            KIND,
            self._id,
            SEVERITY[reading.stage],
            self.name,
            {"char": reading.start},
            self.version,
            {
                "by": reading.by,
                "foreign": reading.foreign,
                "expected": ",".join(sorted(expected)),
                "nats" if reading.by == "language" else "letters": round(reading.evidence, 1),
                "told_at": reading.end,
            },
        )
