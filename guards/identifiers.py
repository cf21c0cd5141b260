"""Identifiers that sort by time."""

from __future__ import annotations

import secrets
import threading

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: in the order of ASCII, without letters that look like digits."""
RANDOM_BITS = 25
CHARACTERS = 14


class IncidentIdentifiers:
    """`inc-` and 14 characters: 45 bits of milliseconds, 25 random bits. Strictly increasing within one process,
    also where the clock stands still or steps back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def new(self, now: float) -> str:
        """`now` is Unix seconds."""
        fresh = (int(now * 1000) << RANDOM_BITS) | secrets.randbits(RANDOM_BITS)
        with self._lock:
            self._last = max(fresh, self._last + 1)
            return "inc-" + base32(self._last)


def base32(number: int) -> str:
    return "".join(ALPHABET[(number >> shift) & 31] for shift in range(5 * (CHARACTERS - 1), -1, -5))
