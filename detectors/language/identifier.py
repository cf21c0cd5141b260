"""The language of a whole text or line: what each candidate loses to the best one, word by word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.language import kernel
from checkengine.detectors.language.languages import COLUMNS, LONE, NEAR, NO_LANGUAGE
from checkengine.detectors.language.model import NAT, language_model
from checkengine.detectors.language.scripts import Script

_ALL_WORDS = np.zeros(kernel.LIMITS, np.int64)
_ALL_WORDS[kernel.CLIP] = _ALL_WORDS[kernel.CLIP_SHORT] = 8 * NAT
_ALL_WORDS[kernel.CLIP_HAN] = 3 * NAT
_ALL_WORDS[kernel.CAPITAL_EIGHTHS], _ALL_WORDS[kernel.LONGEST_QUOTE] = 4, 400
LETTERS_WORTH = {Script.HAN: 4, Script.KANA: 2, Script.HANGUL: 3}
"""In letters of an alphabet: what a character of these says of a text's language beside words of another script."""
KANA_SHARE = 0.05
"""Of the Han and kana letters of a text: from here on it is Japanese."""


@dataclass(frozen=True, slots=True)
class Identity:
    """`language` is an ISO 639-1 code, None where the text holds too little or its script is not read."""

    language: str | None
    script: Script
    """Of most letters; COMMON without any."""
    letters: int
    margin: float
    """Nats by which it is ahead of the next candidate that is not near to it; infinite where the script decides."""
    prose: float
    """Share of the letters that stand in words: the rest is code, names in capitals, addresses…"""
    losses: dict[str, float]
    """Nats that each candidate of the script loses to the best word by word; empty where the script decides."""

    def lag_of(self, language: str) -> float:
        """Nats by which `language` is behind the best candidate that is not near to it: 0 where it is the best one or
        nothing is known, infinite where it has another script."""
        if self.language is None or self.language == language:
            return 0.0
        if language not in self.losses:
            return float("inf")
        rivals = [loss for other, loss in self.losses.items() if other not in NEAR[language]]
        return self.losses[language] - min(rivals)


def identify(text: str, among: Iterable[str] | None = None, *, quotations: bool = True) -> Identity:
    """`among` restricts the candidates; `quotations` counts what stands in quotes and brackets too."""
    tally, losses, read = _measure(text, quotations)
    letters = int(tally.sum())
    prose = read / max(1, letters)
    kana = int(tally[Script.KANA])
    is_japanese = kana > KANA_SHARE * (kana + tally[Script.HAN])
    if is_japanese:
        tally[Script.HAN] += kana
        tally[Script.KANA] = 0
    for script, worth in LETTERS_WORTH.items():
        tally[script] *= worth
    script = Script(int(tally.argmax())) if letters else Script.COMMON
    if script in LONE:
        return Identity(LONE[script], script, letters, float("inf"), 1.0, {})
    if script == Script.HAN and is_japanese:
        return Identity("ja", script, letters, float("inf"), 1.0, {})
    model = language_model()
    columns = range(int(model.lows[script]), int(model.highs[script]))
    wanted = set(COLUMNS if among is None else among) - {NO_LANGUAGE}
    found = {COLUMNS[at]: losses[at] / NAT for at in columns if COLUMNS[at] in wanted}
    if not found or not any(losses[at] for at in columns):
        return Identity(None, script, letters, 0.0, prose, {})
    best = min(found, key=found.__getitem__)
    others = [loss for language, loss in found.items() if language != best and language not in NEAR[best]]
    return Identity(best, script, letters, min(others, default=float("inf")) - found[best], prose, found)


def _measure(text: str, quotations: bool) -> tuple[NDArray[np.int64], list[float], int]:
    state = np.zeros(kernel.FIELDS, np.int64)
    state[kernel.TOTALS] = 2 if quotations else 1
    totals, evidence = np.zeros(len(COLUMNS), np.int32), np.zeros(len(COLUMNS), np.int32)
    tally = np.zeros(len(Script), np.int64)
    rest = (
        state,
        np.zeros(kernel.WORD, np.uint8),
        (totals, evidence, np.zeros(len(COLUMNS), np.int64), np.zeros(len(COLUMNS), np.uint8)),
        tally,
        language_model(),
        _ALL_WORDS,
    )
    # A line break ends the last word.
    data = np.frombuffer((text + "\n").encode("utf-8", "surrogatepass"), np.uint8)
    kernel.advance(data, 0, len(data), *rest)
    return tally, [float(loss) for loss in evidence], int(state[kernel.HOT])
