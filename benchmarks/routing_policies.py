"""The routers that are compared. All see the same: what each server was sent, and whose first token has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from checkengine.engine_shim.proxy.routing.lines import Load, Prompt, TwoLines
from checkengine.engine_shim.proxy.routing.prefix_index import PrefixIndex
from checkengine.engine_shim.proxy.routing.settings import LineSettings
from checkengine.loading.planned import Planned

BYTES_A_TOKEN = 4


class Policy(Protocol):
    loads: dict[str, Load]

    def choose(self, request: Planned) -> tuple[str, int]:
        """Name of the server, and what it is taken to have to compute (bytes)."""
        ...


class LeastLoaded:
    """Where the fewest prompt bytes wait; knows nothing of prefixes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.loads = {name: Load() for name in names}

    def choose(self, request: Planned) -> tuple[str, int]:
        name = min(self.loads, key=lambda each: (self.loads[each].waiting, self.loads[each].running))
        return name, request.input_tokens * BYTES_A_TOKEN


class LongestPrefix:
    """As SGLang's router: the longest match if it is more than half of the prompt and the load is balanced, otherwise
    the least loaded. Unbalanced: the most loaded has 32 requests more than the least, and 1.1 times as many."""

    MATCH, ABSOLUTE, RELATIVE = 0.5, 32, 1.1

    def __init__(self, names: Sequence[str], blocks: int) -> None:
        self.loads = {name: Load() for name in names}
        self._index = PrefixIndex(blocks)

    def choose(self, request: Planned) -> tuple[str, int]:
        chain = request.whole_blocks
        hits = {name: self._index.hit(name, chain) * request.block_tokens for name in self.loads}
        running = [load.running for load in self.loads.values()]
        is_balanced = max(running) - min(running) <= self.ABSOLUTE or max(running) <= self.RELATIVE * min(running)
        best = max(hits, key=lambda name: (hits[name], -self.loads[name].running))
        if not is_balanced or hits[best] <= self.MATCH * request.input_tokens:
            best = min(self.loads, key=lambda name: (self.loads[name].running, self.loads[name].waiting))
        self._index.insert(best, chain)
        return best, (request.input_tokens - hits[best]) * BYTES_A_TOKEN


class Lines:
    """Ours: `TwoLines` of the proxy, with `cold` servers for cold requests, or none: one line by prefix and load."""

    def __init__(self, names: Sequence[str], blocks: int, settings: LineSettings) -> None:
        self.loads = {name: Load() for name in names}
        self._names = list(names)
        self._lines = TwoLines(settings, PrefixIndex(blocks))

    def choose(self, request: Planned) -> tuple[str, int]:
        size, block = request.input_tokens * BYTES_A_TOKEN, request.block_tokens * BYTES_A_TOKEN
        placement = self._lines.place(
            Prompt(request.whole_blocks, size, lambda blocks: blocks * block), self.loads, self._names
        )
        self._lines.index.insert(placement.upstream, request.whole_blocks)
        return placement.upstream, placement.uncached
