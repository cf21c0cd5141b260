"""Broken UTF-8 in a stream of tokens: characters begun and not finished, or continued and never begun."""

from __future__ import annotations

from collections.abc import Sequence


class Utf8Table:
    """What each token does to an unfinished character; made once a vocabulary. A piece is
    `whole` (valid UTF-8), or has leading continuation bytes, a middle, and an unfinished end."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.whole = bytearray(len(pieces))
        self.parts: dict[int, tuple[int, bool, int]] = {}
        """token -> (leading continuation bytes, anything after them, bytes that the end still needs; -1 if broken)."""
        for token, piece in enumerate(pieces):
            if _is_valid(piece):
                self.whole[token] = 1
            else:
                self.parts[token] = _parts(piece)


class Utf8Stream:
    """State of one sequence."""

    __slots__ = ("_needed", "_table")

    def __init__(self, table: Utf8Table) -> None:
        self._table = table
        self._needed = 0

    def push(self, token: int) -> bool:
        """True where this token breaks the encoding; the stream then starts afresh."""
        table = self._table
        whole = table.whole[token] if 0 <= token < len(table.whole) else 1
        if whole and not self._needed:
            return False
        needed, self._needed = self._needed, 0
        if whole:
            # An empty piece (a special token that prints nothing) ends a character as any other does.
            return True
        leading, more, end = table.parts[token]
        if leading > needed or end < 0 or (more and leading != needed):
            self._needed = max(end, 0)
            return True
        self._needed = end if more else needed - leading
        return False


def _is_valid(piece: bytes) -> bool:
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _parts(piece: bytes) -> tuple[int, bool, int]:
    leading = 0
    while leading < len(piece) and 0x80 <= piece[leading] < 0xC0:
        leading += 1
    rest = piece[leading:]
    for needed in (0, 1, 2, 3):
        if (
            _is_valid(rest + b"\x80" * needed)
            or _is_valid(rest + b"\xa0" * needed)
            or _is_valid(rest + b"\x90" * needed)
        ):
            return leading, bool(rest), needed
    return leading, bool(rest), -1
