"""An output that turns to a language or to writing systems which neither its prompt nor its start justifies."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.language import Script, ScriptLimits, ScriptReading, ScriptSwitch
from checkengine.detectors.language.expectation import Expectation, expectation_of
from checkengine.detectors.language.reader import LanguageLimits, LanguageReading
from checkengine.detectors.language.tokens import TokenReader, foreign_rows
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.flat import flat_tokens
from checkengine.guards.prompt import prompt_text
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce, RowSlots
from checkengine.guards.settings import LanguageSettings
from checkengine.guards.step import SequenceStart, StepView

logger = logging.getLogger("checkengine.guards")

KINDS = {"salad": "text.salad", "switch": "language.switch"}
SEVERITY = {"warning": Severity.WARNING, "error": Severity.ERROR}
ALWAYS = (1 << Script.COMMON) | (1 << Script.PARTIAL) | (1 << Script.LATIN)
"""Pieces of characters are no reason to look closer: an emoji has them too."""


def limits_of(settings: LanguageSettings) -> LanguageLimits:
    return LanguageLimits(
        warn=settings.warn_evidence,
        error=max(settings.warn_evidence, settings.error_evidence),
        foreign_letters=settings.foreign_letters,
        foreign_letters_error=max(settings.foreign_letters, settings.foreign_letters_error),
    )


class LanguageGuard(ReportsOnce):
    """Two compiled calls a step for the whole batch: a look-up of every token's script, and the reader of languages.

    Python sees only the rows that hold a foreign script, or in which the reader saw something.
    """

    name: str = "language"
    version: int = 2

    def __init__(self, settings: LanguageSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._limits = ScriptLimits(settings.salad_evidence, settings.switch_tokens)
        self._reader = _token_reader(settings, vocabulary)
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._familiar = np.zeros(16, np.int64)
        """Bit mask by slot: scripts that are no reason to look closer."""
        self._expected: dict[str, int] = {}
        """Scripts that request and prompt justify."""
        self._first: dict[str, int] = {}
        """Index of the first output token that was seen."""
        self._rows = RowSlots(self._slot)
        self._readers: dict[str, tuple[ScriptSwitch, int]] = {}
        """With the index of the first output token that the reader saw."""
        self._observe_nothing()

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        self._start(start, 0)

    def observe(self, step: StepView) -> Iterable[Finding]:
        found: list[Finding] = []
        slots, ends, tokens = self._arrays(step)
        foreign = np.empty(len(slots), np.int64)
        if foreign_rows(tokens, ends, slots, self._vocabulary.script, self._familiar, foreign):
            for row in np.flatnonzero(foreign >= 0).tolist():
                offset = int(foreign[row]) - (int(ends[row - 1]) if row else 0)
                self._read(found, step, row, offset)
        if self._reader is not None:
            for row, reading in self._reader.push(slots, ends, tokens, foreign):
                self._tell_language(found, step, row, reading)
        return found or NO_FINDINGS

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            self._free.append(slot)
            self._rows.forget()
        self._expected.pop(sequence, None)
        self._first.pop(sequence, None)
        self._readers.pop(sequence, None)

    def _observe_nothing(self) -> None:
        """Compiles, before the first step."""
        none = np.zeros(0, np.int64)
        foreign_rows(none, none, none, self._vocabulary.script, self._familiar, none)
        if self._reader is not None:
            self._reader.push(none, none, none, none)

    def _start(self, start: SequenceStart, first: int) -> int:
        slot = self._free.pop() if self._free else len(self._slots)
        if slot >= len(self._familiar):
            self._familiar = np.concatenate((self._familiar, np.zeros_like(self._familiar)))
        self._slots[start.name], self._first[start.name] = slot, first
        prompt = prompt_text(start, self._vocabulary)
        scripts = prompt.scripts | self._scripts_used(start.prompt_tokens)
        self._expected[start.name] = scripts
        self._familiar[slot] = scripts | ALWAYS
        if self._reader is not None:
            self._reader.begin(slot, _with(expectation_of(prompt.text, start.language), scripts))
        return slot

    def _arrays(self, step: StepView) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        flat = flat_tokens(step)
        return self._rows.of(step), flat.ends, flat.tokens

    def _slot(self, step: StepView, row: int) -> int:
        sequence = step.sequences[row]
        slot = self._slots.get(sequence)
        if slot is None:
            slot = self._start(SequenceStart(0, sequence), int(step.output_lengths[row]))
        return slot

    def _read(self, found: list[Finding], step: StepView, row: int, offset: int) -> None:
        sequence = step.sequences[row]
        if sequence in self._reported:
            return
        entry = self._readers.get(sequence)
        if entry is None:
            entry = (ScriptSwitch(self._expected[sequence], self._limits), int(step.output_lengths[row]) + offset)
            self._readers[sequence] = entry
            # From here on every token counts.
            self._familiar[self._slots[sequence]] = 0
        reader, first = entry
        scripts = self._vocabulary.script
        for token in step.tokens[row][offset:]:
            script = int(scripts[token]) if 0 <= token < len(scripts) else int(Script.COMMON)
            if reading := reader.push(script):
                self._tell(found, step, row, reading, first)
                return

    def _scripts_used(self, tokens: Sequence[int]) -> int:
        """Of the whole prompt, by table."""
        ids = np.asarray(tokens, np.int64)
        known = ids[(ids >= 0) & (ids < len(self._vocabulary))]
        mask = sum(1 << int(script) for script in np.unique(self._vocabulary.script[known]))
        return mask & ~((1 << Script.COMMON) | (1 << Script.PARTIAL))

    def _tell(self, found: list[Finding], step: StepView, row: int, reading: ScriptReading, first: int) -> None:
        evidence = {"foreign_tokens": reading.foreign_tokens, "scripts": reading.scripts.bit_count()}
        finding = self._report(
            KINDS[reading.kind], step, row, evidence, severity=Severity.ERROR, token=first + reading.start
        )
        sequence = step.sequences[row]
        del self._readers[sequence]
        self._familiar[self._slots[sequence]] = -1
        if finding is not None:
            found.append(finding)

    def _tell_language(self, found: list[Finding], step: StepView, row: int, reading: LanguageReading) -> None:
        sequence = step.sequences[row]
        if KINDS["switch"] in self._reported.get(sequence, ()):
            return
        severity, token = SEVERITY[reading.stage], self._first[sequence] + reading.start
        evidence = {"nats" if reading.by == "language" else "letters": reading.evidence}
        if severity is Severity.ERROR:
            finding = self._report(KINDS["switch"], step, row, evidence, severity=severity, token=token)
            found += [finding] if finding is not None else []
        else:
            found.append(
                Finding(KINDS["switch"], sequence, severity, step.step, token, self.name, self.version, evidence)
            )


def _token_reader(settings: LanguageSettings, vocabulary: Vocabulary) -> TokenReader | None:
    """None where languages are not to be told apart, or their model cannot be loaded: scripts still are."""
    if not settings.languages:
        return None
    special = vocabulary.special
    pieces = [b"" if token in special else piece for token, piece in enumerate(vocabulary.pieces)]
    try:
        return TokenReader(pieces, limits_of(settings))
    except (ImportError, OSError, ValueError) as error:
        logger.warning("languages are not told apart, only scripts: py3langid's model did not load (%s)", error)
        return None


def _with(expectation: Expectation, scripts: int) -> Expectation:
    return Expectation(expectation.languages, expectation.scripts | scripts, expectation.anything)
