"""An output whose tokens follow each other at random: what corrupted attention writes."""

from __future__ import annotations

from collections.abc import Iterable

from checkengine.detectors.transitions import TransitionReading, TransitionTables, TransitionTest
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.settings import SaladSettings
from checkengine.guards.step import SequenceStart, StepView


class SaladGuard(ReportsOnce):
    """The first bad token is the one where the evidence began, give or take a few."""

    name: str = "salad"

    def __init__(self, settings: SaladSettings, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._evidence = settings.evidence
        self._tables = TransitionTables(vocabulary)
        self._tests: dict[str, tuple[TransitionTest, int]] = {}
        """With the index of the first output token that the test saw."""

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        if self._tables.available:
            self._tests[start.name] = (TransitionTest(self._tables, start.prompt_tokens, self._evidence), 0)

    def observe(self, step: StepView) -> Iterable[Finding]:
        if not self._tables.available:
            return NO_FINDINGS
        found: list[Finding] = []
        for row, (sequence, tokens) in enumerate(zip(step.sequences, step.tokens, strict=True)):
            if sequence in self._reported:
                continue
            test, first = self._tests.get(sequence) or self._start(step, row)
            if not test.tokens:
                first = int(step.output_lengths[row])
                self._tests[sequence] = (test, first)
            for token in tokens:
                if reading := test.push(token):
                    self._tell(found, step, row, reading, first)
                    break
        return found or NO_FINDINGS

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        self._tests.pop(sequence, None)

    def _start(self, step: StepView, row: int) -> tuple[TransitionTest, int]:
        entry = (TransitionTest(self._tables, (), self._evidence), int(step.output_lengths[row]))
        self._tests[step.sequences[row]] = entry
        return entry

    def _tell(self, found: list[Finding], step: StepView, row: int, reading: TransitionReading, first: int) -> None:
        evidence = {"evidence_nats": round(reading.evidence, 1), "tokens": reading.tokens}
        finding = self._report("text.salad", step, row, evidence, severity=Severity.ERROR, token=first + reading.start)
        del self._tests[step.sequences[row]]
        if finding is not None:
            found.append(finding)
