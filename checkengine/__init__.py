"""checkengine: the check-engine light for LLM inference.

`EngineShim` puts guards and a black box into an engine of one's own, `watch` into transformers' `generate()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkengine.assemble import EngineShim as EngineShim
    from checkengine.watching import watch as watch

__version__ = "0.1.0"

_HOMES = {"EngineShim": "checkengine.assemble", "watch": "checkengine.watching"}

__all__ = ["EngineShim", "__version__", "watch"]


def __getattr__(name: str) -> Any:
    """Imports torch and transformers only where they are used: `checkengine --help` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'checkengine' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
