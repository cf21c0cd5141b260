"""Requests and incidents of one upstream in the last seconds."""

from __future__ import annotations

from collections import deque
from itertools import count

PARTS = 12
"""Of the window: what leaves it leaves a part at a time."""
MOST_CLIENTS = 256
"""Told apart in a part; further ones are not counted, which takes many incidents."""


class BurstWindow:
    """At most `PARTS` × `MOST_CLIENTS` clients are remembered. Times in seconds; a time that goes back is now."""

    def __init__(self, seconds: float) -> None:
        self._width = seconds / PARTS
        self._parts: deque[tuple[int, list[int], set[str]]] = deque()
        self._unknown = count()

    def request(self, t: float) -> None:
        self._part(t)[1][0] += 1

    def incident(self, t: float, client: str) -> None:
        """Without a client each is a client of its own."""
        clients = self._part(t)[2]
        if len(clients) < MOST_CLIENTS:
            clients.add(client or f"\0{next(self._unknown)}")

    def counts(self, t: float) -> tuple[int, int]:
        """Clients with an incident, and requests, at least as many."""
        self._forget(t)
        clients = set().union(*(each[2] for each in self._parts))
        return len(clients), max(len(clients), sum(each[1][0] for each in self._parts))

    def clear(self) -> None:
        self._parts.clear()

    def _part(self, t: float) -> tuple[int, list[int], set[str]]:
        self._forget(t)
        number = int(t // self._width)
        if not self._parts or self._parts[-1][0] < number:
            self._parts.append((number, [0], set()))
        return self._parts[-1]

    def _forget(self, t: float) -> None:
        oldest = int(t // self._width) - PARTS
        while self._parts and self._parts[0][0] <= oldest:
            self._parts.popleft()
