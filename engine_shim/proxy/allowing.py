"""The allow-list of paths: what is not on it does not exist."""

from __future__ import annotations

from collections.abc import Sequence

from checkengine.guards.errors import UserError

REST = "*"


class Allowed:
    """Paths are compared as they came, byte by byte: an encoded, doubled or climbing one is on no list, because the
    upstream may read it as another. Raises UserError for a pattern that is none."""

    def __init__(self, patterns: Sequence[str]) -> None:
        for pattern in patterns:
            if not pattern.startswith("/") or REST in pattern[:-1] or (pattern.endswith(REST) and pattern[-2:] != "/*"):
                raise UserError(f'proxy.allow: {pattern!r} is no path; give "/v1/chat/completions" or "/v1/*"')
        self._all = not patterns
        self._exact = frozenset(pattern.encode() for pattern in patterns if not pattern.endswith(REST))
        self._below = tuple(pattern[:-1].encode() for pattern in patterns if pattern.endswith(REST))

    def __call__(self, raw_path: bytes) -> bool:
        if self._all or raw_path in self._exact:
            return True
        return raw_path.startswith(self._below) and _is_plain(raw_path)


def _is_plain(raw_path: bytes) -> bool:
    if b"%" in raw_path or b"\\" in raw_path or b";" in raw_path:
        return False
    return not any(part in (b"", b".", b"..") for part in raw_path.split(b"/")[1:-1]) and not raw_path.endswith(
        (b"/..", b"/.")
    )
