"""Logits or hidden states far larger than this replica's: what a flipped exponent bit leaves behind."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats
from checkengine.detectors.magnitude import HiddenScale, TailLimits, TailSettings
from checkengine.guards.finding import Finding
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce, present
from checkengine.guards.settings import MagnitudeSettings
from checkengine.guards.step import StepView

READINGS = ("maximum", "below_zero", "range", "margin")
"""Largest logit, depth of the smallest one, their distance, top-1 minus top-2 (level `full` only)."""
LEARNT_TOKENS = 256
"""Of each sequence: a long loop must not set what is usual."""

Floats = NDArray[np.float32]


class MagnitudeGuard(ReportsOnce):
    """Learns from the replica's own rows, all sequences together; needs no pass over the logits of its own."""

    name: str = "magnitude"
    needs_stats: bool = True

    def __init__(self, settings: MagnitudeSettings) -> None:
        super().__init__()
        tail = TailSettings(false_alarm=settings.false_alarm, minimum_rows=settings.minimum_rows)
        self._absurd = settings.absurd
        self._logits = TailLimits(len(READINGS), tail)
        self._hidden = TailLimits(1, tail)
        self._scale = HiddenScale()

    def observe(self, step: StepView) -> Iterable[Finding]:
        found: list[Finding | None] = []
        if step.stats is not None and len(step.stats):
            found += self._read_logits(step, step.stats)
        if step.hidden is not None and len(step.hidden):
            found += self._read_hidden(step, step.hidden.detach().float().numpy())
        return present(found) if found else NO_FINDINGS

    def _read_logits(self, step: StepView, stats: RowStats) -> list[Finding | None]:
        values = readings(stats, step.masked)
        limits = self._logits.limits.copy()
        over = values > limits[:, None]
        absurd = stats.maximum > self._absurd
        self._logits.learn(values[:, self._learnable(step)])
        if not (over.any() or absurd.any()):
            return []
        rows = np.flatnonzero((over.any(0) | absurd) & ~np.isnan(values[0])).tolist()
        return [self._found(step, row, evidence(values[:, row], limits)) for row in rows]

    def _read_hidden(self, step: StepView, hidden: NDArray[np.float32]) -> list[Finding | None]:
        sizes = self._scale.read(hidden)
        if sizes is None:
            return []
        limit = float(self._hidden.limits[0])
        over = ~(sizes <= limit) if np.isfinite(limit) else np.zeros(len(sizes), np.bool_)
        learnt = np.where(np.isfinite(sizes), sizes, np.nan)[step.output_lengths < LEARNT_TOKENS]
        self._hidden.learn(learnt[None, :])
        rows = np.flatnonzero(over).tolist()
        told = {"hidden_limit": round(limit, 3)}
        return [self._report("logits.magnitude", step, row, {"hidden": rounded(sizes[row]), **told}) for row in rows]

    def _learnable(self, step: StepView) -> NDArray[np.bool_]:
        lengths = step.output_lengths if step.stats_of is None else step.output_lengths[step.stats_of]
        return lengths < LEARNT_TOKENS

    def _found(self, step: StepView, stats_row: int, told: dict[str, float]) -> Finding | None:
        row, offset = step.place(stats_row)
        first_bad = int(step.output_lengths[row]) + min(offset, len(step.tokens[row]))
        return self._report("logits.magnitude", step, row, told, token=first_bad)


def readings(stats: RowStats, masked: NDArray[np.bool_] | None = None) -> Floats:
    """Shape (READINGS, rows); NaN where a row is not finite (another guard's); of a masked one only the maximum."""
    values = np.full((len(READINGS), len(stats)), np.nan, np.float32)
    with np.errstate(over="ignore"):
        np.maximum(stats.maximum, 0, out=values[0])
        np.maximum(-stats.minimum, 0, out=values[1])
        np.subtract(stats.maximum, stats.minimum, out=values[2])
    if stats.margin is not None:
        values[3] = stats.margin
    if masked is not None:
        values[1:, masked] = np.nan
    if stats.nonfinite.any():
        values[:, stats.nonfinite if masked is None else stats.nonfinite & ~masked] = np.nan
    return values


def evidence(values: Floats, limits: NDArray[np.float64]) -> dict[str, float]:
    """The largest logit, and each reading that passed its limit with that limit."""
    told = {"maximum": rounded(values[0])}
    for name, value, limit in zip(READINGS, values, limits, strict=True):
        if value > limit:
            told |= {name: rounded(value), f"{name}_limit": rounded(limit)}
    return told


def rounded(value: float | np.floating) -> float:
    return float(f"{float(value):.4g}")
