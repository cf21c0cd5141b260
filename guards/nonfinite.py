"""NaN or an infinity in raw logits: the deepest cause there is, and never a matter of taste."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from checkengine.detectors.logits.stats import RowStats
from checkengine.guards.finding import Finding
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce, present
from checkengine.guards.step import StepView


class NonFiniteGuard(ReportsOnce):
    """Reads logits before grammar masks, whose -inf is legal."""

    name: str = "nonfinite"
    needs_stats: bool = True

    def observe(self, step: StepView) -> Iterable[Finding]:
        stats = step.stats
        if stats is None or not stats.nonfinite.any():
            return NO_FINDINGS
        rows = np.flatnonzero(stats.nonfinite).tolist()
        return present([self._report("logits.nonfinite", step, row, counts(stats, row)) for row in rows])


def counts(stats: RowStats, row: int) -> dict[str, float]:
    """How many of each; empty at level `screen`, which knows only that there is one."""
    columns = {
        "nan": stats.nan,
        "positive_infinite": stats.positive_infinite,
        "negative_infinite": stats.negative_infinite,
    }
    return {name: int(column[row]) for name, column in columns.items() if column is not None}
