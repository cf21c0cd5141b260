"""Speculative decoding that accepts too little, too much, or suddenly otherwise than before."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from checkengine.detectors.speculation import Acceptance, AcceptanceCounts, AcceptanceLimits, AcceptanceReading
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce
from checkengine.guards.settings import SpeculationSettings
from checkengine.guards.step import SequenceStart, StepView

KIND = "speculation.acceptance"
SEVERITIES = {
    Acceptance.LOW: Severity.ERROR,
    Acceptance.FALLEN: Severity.ERROR,
    # Text that is easy to guess (a copy, a table) is accepted whole, too.
    Acceptance.HIGH: Severity.WARNING,
    Acceptance.RISEN: Severity.WARNING,
}


class SpeculationGuard(ReportsOnce):
    """Reads `StepView.proposed` and `accepted`. An ERROR may follow a WARNING on the same sequence, once each."""

    name: str = "speculation"

    def __init__(self, settings: SpeculationSettings) -> None:
        super().__init__()
        limits = AcceptanceLimits(
            least_length=settings.least_length, most_rate=settings.most_rate, tokens=settings.tokens
        )
        self._counts = AcceptanceCounts(limits)
        self._slots: dict[str, int] = {}
        self._free: list[int] = []

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        self._slot(start.name)

    def forget(self, sequence: str) -> None:
        super().forget(sequence)
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            self._free.append(slot)

    def observe(self, step: StepView) -> Iterable[Finding]:
        if step.proposed is None or step.accepted is None:
            return NO_FINDINGS
        sound = (step.proposed > 0) & (step.accepted >= 0) & (step.accepted <= step.proposed)
        rows = np.flatnonzero(sound)
        if not len(rows):
            return NO_FINDINGS
        slots = np.array([self._slot(step.sequences[row]) for row in rows.tolist()], np.int64)
        readings = self._counts.add(slots, step.proposed[rows].astype(np.int64), step.accepted[rows].astype(np.int64))
        told = [self._tell(step, int(rows[index]), reading) for index, reading in readings]
        return [finding for finding in told if finding is not None] or NO_FINDINGS

    def _slot(self, sequence: str) -> int:
        slot = self._slots.get(sequence)
        if slot is None:
            slot = self._slots[sequence] = self._free.pop() if self._free else len(self._slots)
            self._counts.clear(slot)
        return slot

    def _tell(self, step: StepView, row: int, reading: AcceptanceReading) -> Finding | None:
        severity = SEVERITIES[reading.kind]
        # Told once for each severity: a loop that ends in corruption is both.
        told = self._reported.setdefault(step.sequences[row], set())
        if (mark := f"{KIND} {severity.name}") in told:
            return None
        told.add(mark)
        return Finding(
            KIND,
            step.sequences[row],
            severity,
            step.step,
            int(step.output_lengths[row]),
            self.name,
            self.version,
            evidence(reading),
        )


def evidence(reading: AcceptanceReading) -> dict[str, float]:
    found: dict[str, float] = {
        reading.kind.value: True,
        "accept_length": round(reading.length, 3),
        "accept_rate": round(reading.rate, 4),
        "tokens": reading.tokens,
        "proposed": reading.proposed,
    }
    if math.isfinite(reading.earlier_rate) and math.isfinite(reading.newest_rate):
        found |= {"earlier_rate": round(reading.earlier_rate, 4), "newest_rate": round(reading.newest_rate, 4)}
    return found
