"""The brake: a guard that stops too much of the traffic is itself the fault (design rule 4)."""

from __future__ import annotations

import math
from collections import deque

from checkengine.guards.settings import BrakeSettings


class WindowCount:
    """How often something happened in the last `window` seconds, to the second, in bounded memory."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._seconds: deque[list[float]] = deque()
        self._total = 0

    def add(self, now: float) -> None:
        second = math.floor(now)
        if self._seconds and self._seconds[-1][0] >= second:
            self._seconds[-1][1] += 1
        else:
            self._seconds.append([second, 1])
        self._total += 1

    def total(self, now: float) -> int:
        while self._seconds and self._seconds[0][0] <= now - self._window:
            self._total -= int(self._seconds.popleft()[1])
        return self._total


class Brake:
    """Counts sequences and, for each guard, the sequences that it stopped."""

    def __init__(self, settings: BrakeSettings) -> None:
        self._settings = settings
        self._begun = WindowCount(settings.window_seconds)
        self._stopped: dict[str, WindowCount] = {}
        self._pulled: set[str] = set()

    def begin(self, now: float) -> None:
        self._begun.add(now)

    def pulled(self, guard: str) -> bool:
        return guard in self._pulled

    def stopped(self, guard: str, now: float) -> int:
        """Sequences that this guard stopped in the window."""
        return self._stopped[guard].total(now) if guard in self._stopped else 0

    def admit(self, guard: str, now: float, live: int) -> bool:
        """May the guard stop one more sequence? True counts it; False pulls the brake. `live` is how many sequences
        run now (those that began before the window count as traffic too)."""
        if self.pulled(guard):
            return False
        traffic = max(self._begun.total(now), live)
        allowed = max(self._settings.minimum_stopped, int(traffic * self._settings.maximum_stopped_fraction))
        if self.stopped(guard, now) >= allowed:
            self._pulled.add(guard)
            return False
        self._stopped.setdefault(guard, WindowCount(self._settings.window_seconds)).add(now)
        return True

    def pull(self, guard: str) -> None:
        """By hand."""
        self._pulled.add(guard)

    def release(self, guard: str) -> None:
        """Let the guard act again, with a fresh count."""
        self._pulled.discard(guard)
        self._stopped.pop(guard, None)
