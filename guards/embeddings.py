"""Vectors of an embeddings request that carry nothing. Exact: no model means to return one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from checkengine.detectors.embeddings import EmbeddingReading, read_embeddings
from checkengine.guards.finding import Finding
from checkengine.guards.rows import NO_FINDINGS, ReportsOnce, present
from checkengine.guards.step import StepView


class EmbeddingGuard(ReportsOnce):
    """Reads `StepView.embeddings`."""

    name: str = "embeddings"

    def observe(self, step: StepView) -> Iterable[Finding]:
        if step.embeddings is None or not len(step.embeddings):
            return NO_FINDINGS
        reading = read_embeddings(step.embeddings)
        bad = (reading.nonfinite > 0) | reading.zero | reading.constant
        rows = np.flatnonzero(bad).tolist()
        dimensions = step.embeddings.shape[1]
        return present(
            [self._report(kind_of(reading, row), step, row, evidence(reading, row, dimensions)) for row in rows]
        )


def kind_of(reading: EmbeddingReading, row: int) -> str:
    if reading.nonfinite[row]:
        return "embedding.nonfinite"
    return "embedding.zero" if reading.zero[row] else "embedding.constant"


def evidence(reading: EmbeddingReading, row: int, dimensions: int) -> dict[str, float]:
    found: dict[str, float] = {"dimensions": dimensions, "nonfinite": int(reading.nonfinite[row])}
    if np.isfinite(reading.norm[row]):
        found["norm"] = float(reading.norm[row])
    return found
