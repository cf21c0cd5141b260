"""Server-sent events, framed on bytes: characters, events and chunks may be cut anywhere, and no byte is changed.

Only whole events are passed on, so that one can be put between them; what is behind the last blank line comes out at
the stream's end. Format: the event stream of the HTML standard (LF, CRLF or CR; comments; several `data` lines).
"""

from __future__ import annotations

import re
from itertools import pairwise

BLANK_LINE = re.compile(rb"(?>\r\n?|\n)(?>\r\n?|\n)")
LINE_END = re.compile(rb"\r\n?|\n")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventFramer:
    def __init__(self, most_bytes: int = 1 << 22) -> None:
        self._most = most_bytes
        self.rest = bytearray()
        """Bytes of an event that is not complete; grown in place, because it may come in very small parts."""

    @property
    def is_too_long(self) -> bool:
        """An event has more bytes than are kept."""
        return len(self.rest) > self._most

    def push(self, data: bytes) -> list[bytes]:
        """Events that are complete now, blank line included; together with `rest` they are what was pushed.

        A CRLF that is cut between two pushes may leave its LF at the next event's beginning, where it means nothing.
        """
        if not self.rest and data.endswith(b"\n\n") and b"\r" not in data:
            if data.count(b"\n\n") == 1:
                return [data]
            return [part + b"\n\n" for part in data.split(b"\n\n")[:-1]]
        return self._slowly(data)

    def end(self) -> bytes:
        rest, self.rest = bytes(self.rest), bytearray()
        return rest

    def _slowly(self, data: bytes) -> list[bytes]:
        # A blank line may begin in what was kept: up to three bytes before its end.
        begin = max(0, len(self.rest) - 3)
        self.rest += data
        ends = [found.end() for found in BLANK_LINE.finditer(self.rest, begin)]
        if not ends:
            return []
        whole = bytes(self.rest[: ends[-1]])
        del self.rest[: ends[-1]]
        return [whole[first:end] for first, end in pairwise([0, *ends])]


def payload_of(event: bytes) -> bytes:
    """An event's data; empty where it has none (comments, other fields)."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2]
    lines = LINE_END.split(event.removeprefix(BYTE_ORDER_MARK))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))


def event_name(event: bytes) -> bytes:
    """Of an event that has one (`event: …`)."""
    lines = LINE_END.split(event.removeprefix(BYTE_ORDER_MARK))
    return next((line[6:].strip() for line in reversed(lines) if line.startswith(b"event:")), b"")
