"""The entry: statistics of raw logits, on the backend that fits."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch

from checkengine.detectors.logits import torch_backend
from checkengine.detectors.logits.stats import Level, RowStats

Backend = Literal["auto", "numba", "torch"]
_NUMBA_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_DTYPES = (*_NUMBA_DTYPES, torch.float64)


def row_stats(logits: torch.Tensor, level: Level = "full", backend: Backend = "auto") -> RowStats:
    """Statistics of raw logits (rows, vocabulary), read before any mask or penalty.

    dtype float16, bfloat16, float32 or float64; rows may be strided. `auto` takes numba for
    half types and float32 in CPU memory, else torch. ValueError for another shape or dtype.
    """
    _check(logits)
    if logits.requires_grad:
        logits = logits.detach()
    fits = logits.device.type == "cpu" and logits.dtype in _NUMBA_DTYPES
    if backend == "numba" and not fits:
        raise ValueError(
            f"the numba backend reads float16, bfloat16 or float32 in CPU memory, not {logits.dtype} on "
            f"{logits.device}; use backend='torch'"
        )
    if backend == "torch" or not fits:
        return torch_backend.row_stats(logits, level)
    stats: RowStats = _numba_backend().row_stats(logits, level)
    return stats


@cache
def _numba_backend() -> Any:
    """Imported at first use: a process whose logits stay on another device never needs numba."""
    from checkengine.detectors.logits import numba_backend

    return numba_backend


def compile_backend(dtype: torch.dtype = torch.float32, levels: tuple[Level, ...] = ("screen", "full")) -> None:
    """Compiles what CPU logits of this dtype need; returns at once where it is compiled already."""
    for level in levels:
        row_stats(torch.zeros(1, 8, dtype=dtype), level)


def warm_up(dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> None:
    """Call before the engine reports ready: no request then waits for a compiler."""
    for dtype in dtypes:
        compile_backend(dtype)


def _check(logits: torch.Tensor) -> None:
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must have shape (rows, vocabulary), got {tuple(logits.shape)}")
    if logits.dtype not in _DTYPES:
        raise ValueError(f"logits must be float16, bfloat16, float32 or float64, got {logits.dtype}")
