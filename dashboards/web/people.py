"""Who looks, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Role(IntEnum):
    """Each may do what those before it may."""

    VIEWER = 0
    """Look."""
    OPERATOR = 1
    """Triage incidents, start replays, turn switches."""
    ADMIN = 2
    """Read captured content, erase it."""

    @classmethod
    def named(cls, name: str) -> Role:
        """ValueError for a name that is none."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"{name!r} is no role: viewer, operator or admin") from None

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Person:
    """Whoever sent a request."""

    name: str
    role: Role
    csrf_key: str = ""
    """Of the session or the browser; empty where the request brought a bearer token, which no page can send."""
    signed_in: bool = False
    """By a session that can be ended."""

    def may(self, role: Role) -> bool:
        return self.role >= role


LOCAL = "local"
"""Name of who sits at this machine, where no sign-in is asked for."""
