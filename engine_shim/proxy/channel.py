"""Text of one kind (what is said, what is thought, tool calls) of one choice, read by guards in batches."""

from __future__ import annotations

from collections.abc import Callable

from checkengine.engine_shim.proxy.guarding import Bench, Seat
from checkengine.guards.text import TextFinding, TextGuard, TextStart

Told = tuple[str, TextFinding]
"""The guard's name in the configuration, and what it found."""
NOTHING: list[Told] = []
MAKE_EVERY = 3
"""Pieces after which the next guard is made."""


class Channel:
    """Guards are made when the first batch is read, or one by one before that: making all of them at once would hold
    every other stream up for the time of some twenty tokens."""

    __slots__ = ("_bench", "_guards", "_pieces", "_start", "_unmade", "length", "waiting")

    def __init__(self, bench: Bench, start: Callable[[], TextStart], only: frozenset[str] | None = None) -> None:
        self._bench, self._start = bench, start
        self._unmade = bench.readers(only)[::-1]
        self._guards: list[tuple[Seat, TextGuard]] = []
        self._pieces: list[str] = []
        self.waiting = 0
        """Pieces that no guard has read."""
        self.length = 0
        """Characters that guards have read."""

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.waiting += 1
        if self._unmade and self.waiting % MAKE_EVERY == 0:
            self._make()

    def read(self) -> list[Told]:
        if not self.waiting:
            return NOTHING
        text, rows = "".join(self._pieces), self.waiting
        self._pieces.clear()
        self.waiting = 0
        self.length += len(text)
        while self._unmade:
            self._make()
        return self._bench.run_all(self._guards, lambda guard: guard.push(text), rows)

    def end(self) -> list[Told]:
        found = self.read()
        return [*found, *self._bench.run_all(self._guards, lambda guard: guard.end(), 1)] if self.length else found

    def _make(self) -> None:
        made = self._bench.make(self._unmade.pop(), self._start())
        if made is not None:
            self._guards.append(made)
