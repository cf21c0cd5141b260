"""An output that turns to writing systems which neither its prompt nor its start justifies."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from checkengine.detectors.language import Script, ScriptLimits, ScriptReading, ScriptSwitch, expected_scripts
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.settings import LanguageSettings
from checkengine.guards.step import SequenceStart, StepView

PROMPT_TOKENS_READ = 512
"""From each end of the prompt: where requests name a language, and little enough to read within a step."""
KINDS = {"salad": "text.salad", "switch": "language.switch"}


class LanguageGuard(ReportsOnce):
    """Costs one look-up a token while the output is Latin letters, digits and signs, two while it is in a script
    that the prompt holds. Only a token of another kind has the prompt's words read, once, and makes a reader."""

    name: str = "language"

    def __init__(self, settings: LanguageSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._limits = ScriptLimits(settings.salad_evidence, settings.switch_tokens)
        self._scripts = vocabulary.script.tobytes()
        # Pieces of characters are no reason to look closer: an emoji has them too.
        self._foreign = (~np.isin(vocabulary.script, (Script.COMMON, Script.PARTIAL, Script.LATIN))).tobytes()
        self._starts: dict[str, SequenceStart] = {}
        self._familiar: dict[str, int] = {}
        """Scripts of the prompt's tokens and of the language that the request names, as a bit mask."""
        self._readers: dict[str, tuple[ScriptSwitch, int]] = {}
        """With the index of the first output token that the reader saw."""

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        self._starts[start.name] = start

    def observe(self, step: StepView) -> Iterable[Finding]:
        foreign, size, readers = self._foreign, len(self._foreign), self._readers
        found: list[Finding] = []
        for row, tokens in enumerate(step.tokens):
            if readers and step.sequences[row] in readers:
                self._read(found, step, row, 0)
                continue
            for offset, token in enumerate(tokens):
                if 0 <= token < size and foreign[token] and not self._is_familiar(step.sequences[row], token):
                    self._read(found, step, row, offset)
                    break
        return found or NO_FINDINGS

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        self._starts.pop(sequence, None)
        self._familiar.pop(sequence, None)
        self._readers.pop(sequence, None)

    def _read(self, found: list[Finding], step: StepView, row: int, offset: int) -> None:
        sequence = step.sequences[row]
        if sequence in self._reported:
            return
        reader, first = self._readers.get(sequence) or self._reader(step, row, offset)
        for token in step.tokens[row][offset:]:
            script = self._scripts[token] if 0 <= token < len(self._scripts) else int(Script.COMMON)
            if reading := reader.push(script):
                self._tell(found, step, row, reading, first)
                return

    def _reader(self, step: StepView, row: int, offset: int) -> tuple[ScriptSwitch, int]:
        sequence = step.sequences[row]
        entry = (ScriptSwitch(self._expected(sequence), self._limits), int(step.output_lengths[row]) + offset)
        self._readers[sequence] = entry
        return entry

    def _is_familiar(self, sequence: str, token: int) -> bool:
        mask = self._familiar.get(sequence)
        if mask is None:
            start = self._starts.get(sequence) or SequenceStart(0, sequence)
            mask = expected_scripts("", start.language) | self._scripts_used(start.prompt_tokens)
            self._familiar[sequence] = mask
        return bool((mask >> self._scripts[token]) & 1)

    def _expected(self, sequence: str) -> int:
        start = self._starts.get(sequence) or SequenceStart(0, sequence)
        prompt = start.prompt_tokens
        if len(prompt) > 2 * PROMPT_TOKENS_READ:
            prompt = (*prompt[:PROMPT_TOKENS_READ], *prompt[-PROMPT_TOKENS_READ:])
        return expected_scripts(self._vocabulary.text(prompt), start.language) | self._familiar.get(sequence, 0)

    def _scripts_used(self, tokens: tuple[int, ...]) -> int:
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
        del self._readers[step.sequences[row]]
        if finding is not None:
            found.append(finding)
