"""Statistics of a vocabulary that is cut into shards (tensor parallel), joined row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats

Float64s = NDArray[np.float64]
_NO_COLUMN = np.iinfo(np.int64).max


def merge(parts: Sequence[RowStats]) -> RowStats:
    """Statistics of the whole from those of shards that do not overlap, in any order and any grouping.

    Each part comes from `row_stats(shard, first_column=…)` on the same rows. Counts, extrema, argmax (the lowest index
    wins a tie), margin and fingerprint are exact; logsumexp and entropy agree within 1e-5. Maxima of float64 shards
    are compared as float32. ValueError where levels or numbers of rows differ, or there is no part.
    """
    _check(parts)
    if len(parts) == 1:
        return parts[0]
    maximum = _stack(parts, "maximum").max(0)
    common: dict[str, Any] = {
        "level": parts[0].level,
        "nonfinite": _stack(parts, "nonfinite").any(0),
        "invalid": _stack(parts, "invalid").any(0),
        "maximum": maximum,
        "minimum": _stack(parts, "minimum").min(0),
    }
    if parts[0].level == "screen":
        return RowStats(**common)
    counted = ("nan", "positive_infinite", "negative_infinite")
    counts: dict[str, Any] = {name: _stack(parts, name).sum(0, dtype=np.int32) for name in counted}
    return RowStats(
        **common,
        **counts,
        fingerprint=_stack(parts, "fingerprint").sum(0, dtype=np.uint64),
        **_top(parts, maximum),
        **_distribution(parts, maximum, common["invalid"]),
    )


def _check(parts: Sequence[RowStats]) -> None:
    if not parts:
        raise ValueError("there is no part to merge")
    kinds = {(part.level, len(part)) for part in parts}
    if len(kinds) > 1:
        raise ValueError(f"parts must be of one level and the same rows, got (level, rows) {sorted(kinds)}")


def _top(parts: Sequence[RowStats], maximum: NDArray[np.float32]) -> dict[str, Any]:
    maxima, columns = _stack(parts, "maximum"), _stack(parts, "argmax")
    leading = (maxima == maximum) & (columns >= 0)
    candidates = np.where(leading, columns, _NO_COLUMN)
    best = candidates.argmin(0)
    rows = np.arange(maxima.shape[1])
    empty = ~leading.any(0)
    maxima[best, rows] = _stack(parts, "runner_up")[best, rows]
    runner_up = maxima.max(0)
    with np.errstate(invalid="ignore"):
        margin = np.where(runner_up == maximum, np.float32(0), maximum - runner_up)
    return {
        "argmax": np.where(empty, -1, candidates[best, rows]),
        "runner_up": runner_up,
        "margin": np.where(empty, np.float32(np.nan), margin),
    }


def _distribution(
    parts: Sequence[RowStats], maximum: NDArray[np.float32], invalid: NDArray[np.bool_]
) -> dict[str, Any]:
    """With the share w of each part: entropy = sum of w (entropy of the part - ln w)."""
    top = maximum.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        below = _stack(parts, "maximum") - top
        log_totals = np.where(_stack(parts, "maximum") == -np.inf, -np.inf, _stack(parts, "log_total") + below)
        log_total = np.log(np.exp(log_totals).sum(0))
        log_share = log_totals - log_total
        share = np.exp(log_share)
        terms = np.where(share > 0, share * (_stack(parts, "entropy") - log_share), 0.0)
        logsumexp, entropy = top + log_total, terms.sum(0)
    masked = maximum == -np.inf
    return {
        "log_total": _float32(log_total, invalid | masked, np.nan),
        "logsumexp": _float32(np.where(masked, -np.inf, logsumexp), invalid, np.nan),
        "entropy": _float32(entropy, invalid | masked, np.nan),
    }


def _float32(values: Float64s, where: NDArray[np.bool_], instead: float) -> NDArray[np.float32]:
    return np.where(where, instead, values).astype(np.float32)


def _stack(parts: Sequence[RowStats], name: str) -> NDArray[Any]:
    """Shape (parts, rows)."""
    arrays = [getattr(part, name) for part in parts]
    if any(array is None for array in arrays):
        raise ValueError(f"a part has no {name}: merge takes what row_stats gives")
    return np.stack(arrays)
