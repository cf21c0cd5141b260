"""NaN or an infinity in raw logits: the deepest cause there is, and never a matter of taste."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats
from checkengine.guards.finding import Finding
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce, present
from checkengine.guards.step import StepView


class NonFiniteGuard(ReportsOnce):
    """Reads logits before masks, where -inf is a fault. On rows that the engine says it masked (`StepView.masked`)
    -inf is legal, unless it is all there is. Each row of a speculative step is judged, rejected drafts' too."""

    name: str = "nonfinite"
    needs_stats: bool = True

    def observe(self, step: StepView) -> Iterable[Finding]:
        stats = step.stats
        if stats is None or not stats.nonfinite.any():
            return NO_FINDINGS
        bad = stats.nonfinite if step.masked is None else illegal(stats, step.masked)
        return present([self._found(step, stats, row) for row in np.flatnonzero(bad).tolist()])

    def _found(self, step: StepView, stats: RowStats, stats_row: int) -> Finding | None:
        row, offset = step.place(stats_row)
        evidence = counts(stats, stats_row)
        if offset >= len(step.tokens[row]):
            # The token behind it was not committed: the sequence is good up to and including its last one.
            offset, evidence["rejected_draft"] = len(step.tokens[row]), True
        first_bad = int(step.output_lengths[row]) + offset
        return self._report("logits.nonfinite", step, row, evidence, token=first_bad)


def illegal(stats: RowStats, masked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows whose non-finite values no mask explains."""
    allowed = masked & (stats.maximum > -np.inf) & ~invalid(stats)
    return stats.nonfinite & ~allowed


def invalid(stats: RowStats) -> NDArray[np.bool_]:
    """Rows with NaN or +inf, from whatever the statistics tell; a NaN shows in them only where it was counted."""
    if stats.invalid is not None:
        return stats.invalid
    found: NDArray[np.bool_] = stats.maximum == np.inf
    return found if stats.nan is None else found | (stats.nan > 0)


def counts(stats: RowStats, row: int) -> dict[str, float]:
    """How many of each; empty at level `screen`, which knows only that there is one."""
    columns = {
        "nan": stats.nan,
        "positive_infinite": stats.positive_infinite,
        "negative_infinite": stats.negative_infinite,
    }
    return {name: int(column[row]) for name, column in columns.items() if column is not None}
