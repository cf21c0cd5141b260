"""Log-probabilities that a server returned beside a choice, as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from checkengine.engine_shim.proxy.channel import Told
from checkengine.engine_shim.proxy.guarding import Bench
from checkengine.guards.text import TextStart

MOST_ROWS = 1 << 20


class LogprobRows:
    """A kind of finding is told once, at the first bad token."""

    def __init__(self, bench: Bench, start: Callable[[], TextStart]) -> None:
        self._guards = bench.logprobs(start())
        self._bench = bench
        self._content: list[object] = []
        self._older: list[Mapping[str, object]] = []
        self._rows = 0
        """Read before."""
        self._told: set[str] = set()

    def add(self, logprobs: object) -> None:
        """Of a chat ({"content": […]}), or the older form."""
        if not isinstance(logprobs, Mapping):
            return
        content = logprobs.get("content")
        if isinstance(content, list):
            self._content += content
        elif isinstance(logprobs.get("token_logprobs"), list):
            self._older.append(logprobs)

    def read(self) -> list[Told]:
        told: list[Told] = []
        if self._content:
            told += self._read({"content": self._content}, len(self._content))
            self._content = []
        for each in self._older:
            told += self._read(each, _length(each))
        self._older = []
        return told

    def _read(self, logprobs: Mapping[str, object], rows: int) -> list[Told]:
        told: list[Told] = []
        for seat, guard in self._guards:
            for finding in self._bench.run(seat, lambda asked: asked.read(logprobs), guard, rows) or ():
                if finding.kind not in self._told:
                    self._told.add(finding.kind)
                    at = {"token": self._rows + int(finding.at.get("token", 0))}
                    told.append((seat.name, replace(finding, at=at)))
        self._rows += rows
        return told


def _length(logprobs: Mapping[str, object]) -> int:
    rows = logprobs.get("token_logprobs")
    return len(rows) if isinstance(rows, list) else 0
