"""Values and texts in the one form in which equal ones are equal."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """JSON with sorted keys and no white space, ASCII only; what JSON cannot hold, as its `repr`. Never raises."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_shown)
    except (ValueError, TypeError, RecursionError):
        return _shown(value)


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} nested too deep"


def digest(text: str) -> bytes:
    """16 bytes."""
    return hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=16).digest()
