"""What the guards of a batch share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from checkengine.guards.finding import Finding, Severity
from checkengine.guards.step import SequenceStart, StepView

NO_FINDINGS: tuple[Finding, ...] = ()


class ReportsOnce:
    """Remembers what a guard has reported of which sequence, so that a fault is told once."""

    name: str
    version: int = 1
    needs_stats: bool = False

    def __init__(self) -> None:
        self._reported: dict[str, set[str]] = {}

    def begin(self, start: SequenceStart) -> None:
        """Nothing to prepare."""

    def forget(self, sequence: str) -> None:
        self._reported.pop(sequence, None)

    def _report(
        self,
        kind: str,
        step: StepView,
        row: int,
        evidence: Mapping[str, float],
        *,
        severity: Severity = Severity.ERROR,
        token: int | None = None,
    ) -> Finding | None:
        """A finding on a row; None where this kind was reported of this sequence already."""
        sequence = step.sequences[row]
        kinds = self._reported.setdefault(sequence, set())
        if kind in kinds:
            return None
        kinds.add(kind)
        first_bad = int(step.output_lengths[row]) if token is None else token
        return Finding(kind, sequence, severity, step.step, first_bad, self.name, self.version, evidence)


def present(findings: Sequence[Finding | None]) -> list[Finding]:
    return [finding for finding in findings if finding is not None]
