"""A sequence that goes round in an exact circle. Healthy models do so now and then, so this one observes by default."""

from __future__ import annotations

from collections.abc import Iterable

from checkengine.detectors.repetition import Cycle, CycleDetector, CycleLimits
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.settings import RepetitionSettings
from checkengine.guards.step import StepView


class RepetitionGuard(ReportsOnce):
    """The first bad token is the first one of the second copy."""

    name: str = "repetition"

    def __init__(self, settings: RepetitionSettings) -> None:
        super().__init__()
        self._limits = CycleLimits(
            minimum_copies=settings.minimum_copies,
            minimum_span=settings.minimum_span,
            short_period=settings.short_period,
            short_span=settings.short_span,
            longest_period=settings.longest_period,
        )
        self._detectors: dict[str, tuple[CycleDetector, int]] = {}
        """With the index of the first output token that the detector saw."""

    def observe(self, step: StepView) -> Iterable[Finding]:
        found: list[Finding] = []
        for row, (sequence, tokens) in enumerate(zip(step.sequences, step.tokens, strict=True)):
            if sequence in self._reported:
                continue
            detector, first = self._detectors.get(sequence) or self._start(step, row)
            for token in tokens:
                if cycle := detector.push(token):
                    self._tell(found, step, row, cycle, first)
                    break
        return found or NO_FINDINGS

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        self._detectors.pop(sequence, None)

    def _start(self, step: StepView, row: int) -> tuple[CycleDetector, int]:
        entry = (CycleDetector(self._limits), int(step.output_lengths[row]))
        self._detectors[step.sequences[row]] = entry
        return entry

    def _tell(self, found: list[Finding], step: StepView, row: int, cycle: Cycle, first: int) -> None:
        evidence = {"period": cycle.period, "copies": round(cycle.copies, 2), "span_tokens": cycle.span_tokens}
        second_copy = first + cycle.start + cycle.period
        finding = self._report("repetition.loop", step, row, evidence, severity=Severity.ERROR, token=second_copy)
        del self._detectors[step.sequences[row]]
        if finding is not None:
            found.append(finding)
