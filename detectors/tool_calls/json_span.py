"""Where a JSON value ends, found while its bytes arrive."""

from __future__ import annotations

import re

_STRUCTURE = re.compile(rb'["{}\[\]]')
_IN_STRING = re.compile(rb'["\\]')


class JsonSpan:
    """Follows one JSON object or array byte by byte; checks nesting only, not the grammar."""

    __slots__ = ("_escaped", "_in_string", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, data: bytes, at: int, stop_at_depth: int = 0) -> int:
        """Index after the byte that closes the value down to `stop_at_depth`, or -1 when more is needed."""
        while True:
            if self._escaped:
                if at >= len(data):
                    return -1
                at, self._escaped = at + 1, False
            match = (_IN_STRING if self._in_string else _STRUCTURE).search(data, at)
            if match is None:
                return -1
            at = match.end()
            if self._take(match.group(), stop_at_depth):
                return at

    def _take(self, byte: bytes, stop_at_depth: int) -> bool:
        if byte == b'"':
            self._in_string = not self._in_string
        elif byte == b"\\":
            self._escaped = True
        elif byte in b"{[":
            self.depth += 1
        else:
            self.depth -= 1
            return self.depth <= stop_at_depth
        return False
