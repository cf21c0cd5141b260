"""A looped block whose state blows up within a forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterable

from checkengine.detectors.recurrence import Divergence, RecurrenceLimits, diverging
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce, present
from checkengine.guards.settings import RecurrenceSettings
from checkengine.guards.step import StepView


class RecurrenceGuard(ReportsOnce):
    """Reads `StepView.loops`: one forward pass, a row a sequence."""

    name: str = "recurrence"

    def __init__(self, settings: RecurrenceSettings) -> None:
        super().__init__()
        self._limits = RecurrenceLimits(
            growth=settings.growth, fewest_loops=settings.fewest_loops, window=settings.window
        )

    def observe(self, step: StepView) -> Iterable[Finding]:
        if step.loops is None:
            return NO_FINDINGS
        found = diverging(step.loops, self._limits)
        return present([self._tell(step, divergence) for divergence in found]) if found else NO_FINDINGS

    def _tell(self, step: StepView, divergence: Divergence) -> Finding | None:
        finite = math.isfinite(divergence.radius)
        evidence: dict[str, float] = {"loop": divergence.loop, "finite": finite}
        if finite:
            evidence |= {"loops": divergence.loops, "radius": divergence.radius, "growth": divergence.growth}
        return self._report("recurrence.divergence", step, divergence.row, evidence, severity=Severity.ERROR)
