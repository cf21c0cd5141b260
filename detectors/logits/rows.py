"""The entry: statistics of raw logits, on the backend that fits."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Literal

import torch

from checkengine.detectors.logits import torch_backend
from checkengine.detectors.logits.pending import DeviceRowStats
from checkengine.detectors.logits.stats import Level, RowStats

Backend = Literal["auto", "numba", "torch", "triton"]
_TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_DTYPES = (*_TRITON_DTYPES, torch.float64)


def row_stats(
    logits: torch.Tensor, level: Level = "full", backend: Backend = "auto", *, first_column: int = 0
) -> RowStats:
    """Statistics of raw logits (rows, vocabulary), read before any mask or penalty; waits for the device.

    dtype float16, bfloat16, float32 or float64; rows may be strided. `auto` takes numba in CPU memory, triton on a GPU
    where it is installed (not for float64), else torch. `first_column` is the first column's number in the whole
    vocabulary where this is a shard of it. ValueError for another shape, dtype or device than the backend reads.
    """
    logits = _checked(logits, first_column)
    stats: RowStats = _backend(backend, logits).row_stats(logits, level, first_column)
    return stats


def pending_row_stats(
    logits: torch.Tensor, level: Level = "full", backend: Backend = "auto", *, first_column: int = 0
) -> DeviceRowStats:
    """As `row_stats`, but never waits for the device: `collect` the result a step later, when it is `ready`.

    Enqueues its kernels on the current stream and the copy on a side stream; `auto` takes torch in CPU memory.
    """
    logits = _checked(logits, first_column)
    if backend == "auto" and logits.device.type == "cpu":
        backend = "torch"
    if backend == "numba":
        raise ValueError("the numba backend reads CPU memory at once; use row_stats, or backend='torch'")
    return DeviceRowStats(_backend(backend, logits).pack(logits, level, first_column))


def _backend(backend: Backend, logits: torch.Tensor) -> Any:
    kind = logits.device.type
    if backend == "auto":
        backend = "numba" if kind == "cpu" else "torch"
        if kind == "cuda" and logits.dtype in _TRITON_DTYPES and triton_installed():
            backend = "triton"
    if backend == "numba" and kind != "cpu":
        raise ValueError(f"the numba backend reads CPU memory, not {logits.device}; use backend='torch'")
    if backend == "triton" and logits.dtype not in _TRITON_DTYPES:
        raise ValueError("the triton backend reads float16, bfloat16 or float32, not float64; use backend='torch'")
    return torch_backend if backend == "torch" else _module(f"{backend}_backend")


@cache
def _module(name: str) -> Any:
    """Imported at first use: a process whose logits stay on another device never needs numba, nor triton elsewhere."""
    return importlib.import_module(f"checkengine.detectors.logits.{name}")


@cache
def triton_installed() -> bool:
    try:
        _module("triton_backend")
    except ImportError:
        return False
    return True


def compile_backend(
    dtype: torch.dtype = torch.float32, levels: tuple[Level, ...] = ("screen", "full"), device: str = "cpu"
) -> None:
    """Compiles what logits of this dtype need on this device; returns at once where it is compiled already."""
    for level in levels:
        row_stats(torch.zeros(1, 8, dtype=dtype, device=device), level)


def warm_up(dtypes: tuple[torch.dtype, ...] = (torch.float32,), device: str = "cpu", vocabulary_size: int = 8) -> None:
    """Call before the engine reports ready: no request then waits for a compiler, nor, where the size is given, for
    the keys' copy to the device."""
    if device != "cpu":
        torch_backend.device_keys(vocabulary_size, torch.empty(0, device=device).device)
    for dtype in dtypes:
        compile_backend(dtype, device=device)


def _checked(logits: torch.Tensor, first_column: int) -> torch.Tensor:
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must have shape (rows, vocabulary), got {tuple(logits.shape)}")
    if logits.dtype not in _DTYPES:
        raise ValueError(f"logits must be float16, bfloat16, float32 or float64, got {logits.dtype}")
    if first_column < 0:
        raise ValueError(f"first_column must not be negative, got {first_column}")
    return logits.detach() if logits.requires_grad else logits
