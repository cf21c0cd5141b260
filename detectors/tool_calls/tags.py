"""The tags of some families as one set: what opens, what closes, and what a tag may begin as."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from checkengine.detectors.tool_calls.delimiters import DIALECTS, Dialect


class Tags:
    """Of a set of dialects; immutable, shared by all sequences."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self.openings = {dialect.opening: dialect for dialect in dialects}
        sections = [section for dialect in dialects for section in dialect.sections]
        self.section_openings = frozenset(opening for opening, _ in sections)
        self.all = frozenset(
            (
                *self.openings,
                *(d.closing for d in dialects if d.closing),
                *(tag for section in sections for tag in section),
            )
        )
        by_length = sorted(self.all, key=len, reverse=True)
        self.search = re.compile(b"|".join(re.escape(tag) for tag in by_length)).search
        self.beginnings = frozenset(tag[:end] for tag in self.all for end in range(1, len(tag)))
        self.may_begin = re.compile(rb"[<\[]").search

    def beginning(self, data: bytes) -> bytes:
        """The end of the data that further bytes could complete to a tag; empty where there is none."""
        at = max(data.rfind(b"<"), data.rfind(b"["))
        end = data[at:] if at >= 0 else b""
        return end if end in self.beginnings else b""

    def loud_tokens(self, pieces: Iterable[bytes]) -> frozenset[int]:
        """Ids of the tokens in which a tag stands or begins: all others leave a recogniser that is idle as it is."""
        return frozenset(
            token
            for token, piece in enumerate(pieces)
            if self.may_begin(piece) and (self.search(piece) or self.beginning(piece))
        )


_ALL = Tags(DIALECTS)


def tags_of(dialects: tuple[Dialect, ...] = DIALECTS) -> Tags:
    return _ALL if dialects is DIALECTS else Tags(dialects)
