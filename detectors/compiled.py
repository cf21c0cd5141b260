"""Functions compiled by numba, kept on disk between processes, and compiled anew when anything they call has changed.

numba's own cache looks at the file that a function stands in and at no other one. Where a compiled function calls one
of a file beside it, a change there would leave the old code running: after an upgrade, wrong results or a loop without
end. So what is kept is keyed by all sources of the function's folder; compiled functions call none of another folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache

SUMS_IN_LANES = frozenset({"reassoc", "contract"})
"""`fastmath` that lets sums run in lanes; NaN and infinities keep their meaning."""


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Runs without the interpreter's lock and divides by zero as numpy does; `options` of numba.njit say otherwise."""
    options = {"nogil": True, "error_model": "numpy", **options}
    dispatcher = numba.njit(**options)(function)
    try:
        dispatcher._cache = _KeyedCache(function)
    except (RuntimeError, AttributeError, OSError):
        # No directory to cache in (a read-only install without a home), or another numba: compile in each process.
        return numba.njit(**options)(function)
    return dispatcher


def compiled_sums(function: Callable[..., Any]) -> Any:
    """As `compiled`, with sums in lanes: their last bits depend on the processor."""
    return compiled(function, fastmath=set(SUMS_IN_LANES))


class _KeyedCache(FunctionCache):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._sources = sources_digest(Path(function.__code__.co_filename).parent)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), self._sources)


@lru_cache
def sources_digest(folder: Path) -> str:
    """Of all Python files that lie in the folder itself."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
