"""Does this installation do on this machine what everything else relies on? A few seconds, no model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.config import Settings
from checkengine.detectors import Vocabulary, row_stats
from checkengine.detectors.logits.stats import RowStats
from checkengine.figures import Figure
from checkengine.guards import Pipeline, SequenceStart, StepView, build_guards

ROWS, VOCABULARY = 16, 49_152
REPEATS = 50
EXACT = ("nonfinite", "maximum", "minimum", "nan", "positive_infinite", "negative_infinite", "argmax", "fingerprint")
TOLERANCE = 1e-5
"""Nats, between backends: they sum in different orders."""


def selftest_figures() -> list[Figure]:
    healthy = logits_of(ROWS)
    poisoned = healthy.clone()
    poisoned[3, 1000] = float("nan")
    return [
        backends_disagree(healthy, poisoned),
        backends_differ_in("logsumexp", healthy),
        backends_differ_in("entropy", healthy),
        products_that_do_not_repeat(),
        findings_on("healthy rows with a finding", healthy, expected=()),
        findings_on("rows wrongly judged with one NaN planted", poisoned, expected=("row-3",)),
    ]


def logits_of(rows: int, seed: int = 0) -> torch.Tensor:
    """Shape (rows, VOCABULARY), as peaked as a language model's."""
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


def backends_disagree(*batches: torch.Tensor) -> Figure:
    """Values that must be equal on every backend and are not."""
    differing = 0
    for batch in batches:
        fast, plain = row_stats(batch, backend="numba"), row_stats(batch, backend="torch")
        differing += sum(int((_array(fast, name) != _array(plain, name)).sum()) for name in EXACT)
    return _figure("row statistics that differ between backends", differing, "values", 0)


def backends_differ_in(name: str, batch: torch.Tensor) -> Figure:
    fast, plain = row_stats(batch, backend="numba"), row_stats(batch, backend="torch")
    largest = float(np.abs(_array(fast, name) - _array(plain, name)).max())
    return _figure(f"largest difference of {name} between backends", largest, "nats", TOLERANCE)


def products_that_do_not_repeat() -> Figure:
    """Bits are claimed at equal shape only; where even these differ, no replay can be bit-exact."""
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(ROWS, 576, generator=generator), torch.randn(576, 1536, generator=generator))
    first = left @ right
    differing = sum(not torch.equal(left @ right, first) for _ in range(REPEATS))
    return _figure("matrix products that do not repeat bit for bit", differing, f"of {REPEATS}", 0)


def findings_on(name: str, logits: torch.Tensor, expected: tuple[str, ...]) -> Figure:
    """Sequences that the guards judge otherwise than expected, in one step."""
    names = tuple(f"row-{row}" for row in range(len(logits)))
    pipeline = Pipeline(build_guards(Settings().guards, _letters()), Settings().guards)
    for handle, sequence in enumerate(names):
        pipeline.begin(SequenceStart(handle, sequence, (1, 2, 3)))
    found = {finding.sequence for finding in pipeline.observe(_step(names, logits))}
    return _figure(name, len(found ^ set(expected)), "rows", 0)


def _step(names: tuple[str, ...], logits: torch.Tensor) -> StepView:
    stats = row_stats(logits, "full")
    counts = np.zeros(len(names), np.int32)
    tokens = tuple((max(0, int(token)),) for token in _array(stats, "argmax"))
    return StepView(0, 0.0, names, tokens, stats, counts + 3, counts)


def _letters() -> Vocabulary:
    """A vocabulary of the right size without any text."""
    count = VOCABULARY
    nothing = np.zeros(count, np.bool_)
    return Vocabulary((b"",) * count, ~nothing, np.zeros(count, np.uint8), nothing, frozenset(), {})


def _array(stats: RowStats, name: str) -> NDArray[Any]:
    values: NDArray[Any] = getattr(stats, name)
    return values


def _figure(name: str, value: float, unit: str, target: float) -> Figure:
    return {"name": name, "value": value, "unit": unit, "target": target, "ok": value <= target}
