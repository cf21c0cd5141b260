"""Text of one kind (what is said, what is thought, tool calls) of one choice, read by guards in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from checkengine.engine_shim.proxy.guarding import Bench, Seat
from checkengine.guards.text import TextFinding, TextGuard, TextStart

Told = tuple[str, TextFinding]
"""The guard's name in the configuration, and what it found."""
NOTHING: list[Told] = []


class Channel:
    """Guards are made when the first batch is read: making them takes longer than a token does."""

    __slots__ = ("_bench", "_guards", "_only", "_pieces", "_start", "length", "waiting")

    def __init__(self, bench: Bench, start: Callable[[], TextStart], only: frozenset[str] | None = None) -> None:
        self._bench, self._start, self._only = bench, start, only
        self._guards: list[tuple[Seat, TextGuard]] | None = None
        self._pieces: list[str] = []
        self.waiting = 0
        """Pieces that no guard has read."""
        self.length = 0
        """Characters that guards have read."""

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.waiting += 1

    def read(self) -> list[Told]:
        if not self.waiting:
            return NOTHING
        text, rows = "".join(self._pieces), self.waiting
        self._pieces.clear()
        self.waiting = 0
        self.length += len(text)
        return self._ask(lambda guard: guard.push(text), rows)

    def end(self) -> list[Told]:
        found = self.read()
        return [*found, *self._ask(lambda guard: guard.end(), 1)] if self.length else found

    def _ask(self, question: Callable[[TextGuard], Iterable[TextFinding]], rows: int) -> list[Told]:
        if self._guards is None:
            self._guards = self._bench.texts(self._start(), self._only)
        told: list[Told] = []
        for seat, guard in tuple(self._guards):
            found = self._bench.run(seat, question, guard, rows)
            if found is None:
                self._guards.remove((seat, guard))
            elif found:
                told += [(seat.name, finding) for finding in found]
        return told
