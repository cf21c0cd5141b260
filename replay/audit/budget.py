"""How often audits may run: a share of one core's CPU time, measured and never overdrawn for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

IDLE_SECONDS = 1.0
"""A pause between two steps counts as no more: a night without traffic is no credit for the morning."""
SAVED_AUDITS = 3.0
"""Audits that may be saved up for."""
EAGER = 1.5
"""Draws for each audit that is paid for: some rows are drawn for two strata at once, some when nothing is left."""
WEIGHT, STEP_WEIGHT = 0.2, 0.01
"""Of the newest cost, and of the newest step, in their moving averages."""


class CpuBudget:
    """A balance of CPU seconds that grows by `share` of the wall time in which the engine steps.

    `charge` takes what an audit cost; the next one waits until the balance is not negative, and the schedule slows down
    by `per_step`. Until the first audit is charged, one is taken to cost `first_cost` seconds. Thread-safe.
    """

    def __init__(self, share: float, *, first_cost: float = 0.5, clock: Callable[[], float] = time.monotonic) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"a share of one core's CPU time is above 0 and at most 1, got {share}")
        self.share = share
        self.cost = first_cost
        """CPU seconds of one audit, moving average."""
        self.spent = 0.0
        self.wall = 0.0
        """Seconds in which the engine stepped."""
        self._balance = 0.0
        self._charged = False
        self._clock = clock
        self._last = clock()
        self._seconds_per_step = 0.01
        self._lock = threading.Lock()

    def step(self) -> None:
        """A step has run."""
        now = self._clock()
        with self._lock:
            elapsed = min(max(now - self._last, 0.0), IDLE_SECONDS)
            self._last = now
            self.wall += elapsed
            self._seconds_per_step += STEP_WEIGHT * (elapsed - self._seconds_per_step)
            self._balance = min(self._balance + self.share * elapsed, SAVED_AUDITS * self.cost)

    def charge(self, seconds: float) -> None:
        """CPU time of one audit: its capture and its judging."""
        with self._lock:
            self.spent += seconds
            self._balance -= seconds
            self.cost += (WEIGHT if self._charged else 1.0) * (seconds - self.cost)
            self._charged = True

    @property
    def may_spend(self) -> bool:
        return self._balance >= 0

    @property
    def per_step(self) -> float:
        """Draws a step; the balance keeps the audits to what is paid for."""
        return EAGER * self.share * self._seconds_per_step / max(self.cost, 1e-6)


class FixedPace:
    """One audit in `every_steps` steps on average, whatever it costs: for drills and tests."""

    may_spend = True

    def __init__(self, every_steps: int) -> None:
        if every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, got {every_steps}")
        self.per_step = 1 / every_steps

    def step(self) -> None:
        """Time does not matter."""

    def charge(self, seconds: float) -> None:
        """Nor does cost."""
