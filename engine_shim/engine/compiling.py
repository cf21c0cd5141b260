"""numba's compilers with types that checkers understand. Compiled code is kept on disk and runs without the
interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import cfunc, njit, types

Function = TypeVar("Function", bound=Callable[..., Any])

_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
"""No nnan and no ninf: a NaN in memory must come out as NaN."""


def compiled(function: Function) -> Function:
    """Compiles on the first call."""
    result: Function = njit(nogil=True, fastmath=_FASTMATH, error_model="numpy", cache=True)(function)
    return result


def c_address(function: Callable[[Any], None]) -> int:
    """Compiles now; the address of a C function that takes one pointer."""
    signature = types.void(types.voidptr)
    address: int = cfunc(signature, fastmath=_FASTMATH, error_model="numpy", cache=True, nopython=True)(
        function
    ).address
    return address
