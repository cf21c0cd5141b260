"""Statistics of raw logits. torch and numba load at first use, so that the data types stay cheap to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkengine.detectors.logits.merge import merge
from checkengine.detectors.logits.stats import Level, RowStats

if TYPE_CHECKING:
    from checkengine.detectors.logits.pending import DeviceRowStats
    from checkengine.detectors.logits.rows import compile_backend, pending_row_stats, row_stats, warm_up

__all__ = [
    "DeviceRowStats",
    "Level",
    "RowStats",
    "compile_backend",
    "merge",
    "pending_row_stats",
    "row_stats",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    if name in ("DeviceRowStats", "compile_backend", "pending_row_stats", "row_stats", "warm_up"):
        from checkengine.detectors.logits import rows

        return getattr(rows, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
