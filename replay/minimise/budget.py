"""How often an executor may run before the search ends with what it has."""

from __future__ import annotations

from dataclasses import dataclass


class OutOfBudget(Exception):
    """The next run would be one too many. It ends a search and is no error."""


@dataclass(slots=True)
class Budget:
    """Counts every run of a step or of a call: one replay each."""

    limit: int
    used: int = 0

    def take(self) -> None:
        if self.used >= self.limit:
            raise OutOfBudget
        self.used += 1
