"""Text of one kind (what is said, what is thought, tool calls) of one choice, read by guards in batches."""

from __future__ import annotations

from collections.abc import Callable

from checkengine.engine_shim.proxy.guarding import Bench, Seat
from checkengine.guards.text import TextFinding, TextGuard, TextStart

Told = tuple[str, TextFinding]
"""The guard's name in the configuration, and what it found."""
NOTHING: list[Told] = []
SLICE = 1 << 14
"""Characters of a long piece that make one of its own; guards read them in about 15 ms."""
CHARACTERS_A_TOKEN = 4
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
        if len(piece) <= SLICE:
            self._pieces.append(piece)
            self.waiting += 1
        else:
            self._pieces += [piece[first : first + SLICE] for first in range(0, len(piece), SLICE)]
            self.waiting = len(self._pieces)
        if self._unmade and self.waiting % MAKE_EVERY == 0:
            self._make()

    def read(self, most: int | None = None) -> list[Told]:
        """All pieces that wait, or the first `most` of them."""
        if not self.waiting:
            return NOTHING
        text = "".join(self._pieces[:most])
        # A whole answer is one piece, and takes a guard as long as its tokens would.
        rows = max(min(self.waiting, most or self.waiting), len(text) // CHARACTERS_A_TOKEN)
        del self._pieces[:most]
        self.waiting = len(self._pieces)
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
