"""Statistics of raw logits. torch and numba load at first use, so that the data types stay cheap to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkengine.detectors.logits.stats import Level, RowStats

if TYPE_CHECKING:
    from checkengine.detectors.logits.rows import compile_backend, row_stats, warm_up

__all__ = ["Level", "RowStats", "compile_backend", "row_stats", "warm_up"]


def __getattr__(name: str) -> Any:
    if name in ("compile_backend", "row_stats", "warm_up"):
        from checkengine.detectors.logits import rows

        return getattr(rows, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
