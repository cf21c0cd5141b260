"""A row whose logits are all alike: engines launder NaN into such rows, and the sampler then draws salad from them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats
from checkengine.guards.finding import Finding
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce, present
from checkengine.guards.settings import UniformSettings
from checkengine.guards.step import StepView


class UniformGuard(ReportsOnce):
    """`vocabulary_size` is the width of a row of logits."""

    name: str = "uniform"
    needs_stats: bool = True

    def __init__(self, settings: UniformSettings, vocabulary_size: int) -> None:
        super().__init__()
        self._highest_entropy = math.log(max(vocabulary_size, 2)) - settings.entropy_tolerance

    def observe(self, step: StepView) -> Iterable[Finding]:
        if step.stats is None:
            return NO_FINDINGS
        uniform = self._uniform(step.stats)
        if not uniform.any():
            return NO_FINDINGS
        rows = np.flatnonzero(uniform & ~step.stats.nonfinite).tolist()
        return present([self._found(step, step.stats, row) for row in rows])

    def _found(self, step: StepView, stats: RowStats, stats_row: int) -> Finding | None:
        row, offset = step.place(stats_row)
        first_bad = int(step.output_lengths[row]) + min(offset, len(step.tokens[row]))
        return self._report("logits.uniform", step, row, evidence(stats, stats_row), token=first_bad)

    def _uniform(self, stats: RowStats) -> NDArray[np.bool_]:
        equal: NDArray[np.bool_] = stats.maximum == stats.minimum
        if stats.entropy is None:
            return equal
        # NaN entropy (a row with NaN or +inf) compares False, as it should: that row is another guard's.
        return equal | (stats.entropy >= self._highest_entropy)


def evidence(stats: RowStats, row: int) -> dict[str, float]:
    found: dict[str, float] = {
        "maximum": float(stats.maximum[row]),
        "minimum": float(stats.minimum[row]),
    }
    if stats.entropy is not None:
        found["entropy"] = float(stats.entropy[row])
    return found
