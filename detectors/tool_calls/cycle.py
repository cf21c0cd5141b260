"""A call that never ends because its text repeats: an exact cycle at its end."""

from __future__ import annotations

KEPT = 8192
"""Bytes; the longest period that is found is a sixth of it."""
STRIDE = 32
"""Bytes between two looks, counted from the call's first byte, so that the pieces' borders change nothing."""
PROBE = 16
FEWEST_COPIES = 6
SHORT_PERIOD = 16
SHORT_SPAN = 512
"""Bytes that a period below SHORT_PERIOD has to cover: dividers and zeros are short."""


class TailCycle:
    """Copies of one piece of text, side by side, at the end of what was fed when there first were enough; else 0."""

    __slots__ = ("_fed", "_tail", "copies")

    def __init__(self) -> None:
        self._tail = bytearray()
        self._fed = 0
        self.copies = 0

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not self.copies:
            taken = data[at : at + STRIDE - self._fed % STRIDE]
            self._tail += taken
            self._fed += len(taken)
            at += len(taken)
            if self._fed % STRIDE == 0:
                self._look()

    def _look(self) -> None:
        tail = self._tail
        if len(tail) > 2 * KEPT:
            del tail[:-KEPT]
        found = tail.rfind(tail[-PROBE:], 0, len(tail) - 1)
        period = len(tail) - PROBE - found
        needed = max(FEWEST_COPIES * period, SHORT_SPAN if period < SHORT_PERIOD else 0)
        if found >= 0 and needed <= len(tail) and tail[-needed:-period] == tail[period - needed :]:
            self.copies = needed // period
