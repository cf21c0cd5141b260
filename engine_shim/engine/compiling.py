"""numba's `njit` with a type that checkers understand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[Function], Function]:
    """Compiles on the first call, without the interpreter lock while it runs."""
    decorate: Callable[[Function], Function] = njit(nogil=True, **options)
    return decorate
