"""What the guards of a batch share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

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


class RowSlots:
    """The slots of a step's rows, looked up anew only where its sequences are other ones than the step's before."""

    def __init__(self, slot: Callable[[StepView, int], int]) -> None:
        """`slot` gives the slot of a row of the step, a new one where its sequence has none."""
        self._slot = slot
        self._sequences: tuple[str, ...] = ()
        self._slots: NDArray[np.int64] = np.empty(0, np.int64)

    def of(self, step: StepView) -> NDArray[np.int64]:
        """Shape (rows,)."""
        if step.sequences != self._sequences:
            self._slots = np.array([self._slot(step, row) for row in range(len(step.sequences))], np.int64)
            self._sequences = step.sequences
        return self._slots

    def forget(self) -> None:
        """A slot was given back."""
        self._sequences = ()


def present(findings: Sequence[Finding | None]) -> list[Finding]:
    return [finding for finding in findings if finding is not None]
