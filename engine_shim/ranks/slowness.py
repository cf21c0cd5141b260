"""Which rank computes slowly, told from its own seconds a step without the waiting for others."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

STEPS = 8
FACTOR = 3.0
LEAST_SECONDS = 0.01
"""Below, a step is too short for its time to mean anything."""


class Slowness:
    """A rank is slow when it took `FACTOR` times the others' median in each of the last `STEPS` steps; told once."""

    def __init__(self) -> None:
        self._slow: dict[int, deque[bool]] = {}
        self._told: set[int] = set()

    def push(self, seconds: Mapping[int, float]) -> list[int]:
        found = []
        for rank, spent in seconds.items():
            others = [each for other, each in seconds.items() if other != rank]
            steps = self._slow.setdefault(rank, deque(maxlen=STEPS))
            steps.append(bool(others) and spent > max(LEAST_SECONDS, FACTOR * median(others)))
            if len(steps) == STEPS and all(steps) and rank not in self._told:
                self._told.add(rank)
                found.append(rank)
        return found
