"""Runs our compiled code on torch's own OpenMP threads.

A second pool of threads fights torch's for the cores: its workers spin at barriers while ours want to run. So we start
our parallel regions in the OpenMP runtime that torch has loaded, whose workers are waiting anyway.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@cache
def _start_parallel() -> Any | None:
    """GNU OpenMP's entry for a parallel region, `GOMP_parallel(function, data, threads, flags)`; None without it."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*")):
        try:
            function = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        function.restype = None
        return function
    return None


def run_parallel(work: int, data: int, threads: int) -> None:
    """Calls the C function at address `work` with the pointer `data` on so many threads, or once where torch's OpenMP
    is not GNU's. The function shares its items out by `take_item`."""
    start = _start_parallel()
    if start is None or threads < 2:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(work)(data)
    else:
        start(work, data, threads, 0)


@intrinsic  # type: ignore[untyped-decorator]
def as_pointer(context: Any, address: Any) -> Any:
    """An address in an int64 as a pointer."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def take_item(context: Any, address: Any) -> Any:
    """Adds one to the int64 at the address, atomically, and returns what it was."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = context.get_value_type(types.int64)
        pointer = builder.inttoptr(arguments[0], word.as_pointer())
        return builder.atomic_rmw("add", pointer, context.get_constant(types.int64, 1), "monotonic")

    return types.int64(types.int64), build
