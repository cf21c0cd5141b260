"""Which upstream: cold requests and warm ones in two lines, and within a line where the least prefill waits.

A long prompt that is in no prefix cache keeps an engine busy for as long as its prefill takes, and warm requests behind
it wait though they have next to nothing to compute. Sent elsewhere, it delays its own kind only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from checkengine.engine_shim.proxy.routing.prefix_index import Chain, PrefixIndex
from checkengine.engine_shim.proxy.routing.settings import LineSettings


class Line(StrEnum):
    WARM = "warm"
    COLD = "cold"


@dataclass(slots=True)
class Load:
    """What an upstream has in hand from this proxy. Other clients of it are not seen."""

    waiting: int = 0
    """Bytes of prompts, beyond their estimated hits, whose first token has not come."""
    running: int = 0
    """Requests."""


@dataclass(frozen=True, slots=True)
class Prompt:
    chain: Chain
    size: int
    """Bytes: those of the chain's blocks, and the rest."""
    bytes_of: Callable[[int], int]
    """What so many leading blocks of the chain stand for."""


@dataclass(frozen=True, slots=True)
class Placement:
    upstream: str
    line: Line
    hit_share: float
    """Estimated, of the prompt, on the chosen upstream."""
    uncached: int
    """Bytes that are left to compute there."""


class TwoLines:
    """Not thread-safe. The same code routes in the proxy and in `checkengine bench routing`."""

    def __init__(self, settings: LineSettings, index: PrefixIndex) -> None:
        self._settings, self.index = settings, index
        self._cold = frozenset(settings.cold)
        self._turns = itertools.count(1)
        self._last: dict[str, int] = {}
        """When each was chosen last: among equals the one that waited longest, so that idle caches are all filled."""

    def place(self, prompt: Prompt, loads: dict[str, Load], names: Sequence[str]) -> Placement:
        """Among `names`, at least one. Nothing is recorded: call `index.insert` when the request is sent."""
        hits = self._hits(prompt, names)
        line = self._line(prompt, [name for name in names if name not in self._cold], hits)
        chosen = min(names, key=lambda name: self._cost(prompt.size - hits[name], loads[name], name, line))
        self._last[chosen] = next(self._turns)
        return Placement(chosen, line, hits[chosen] / max(1, prompt.size), prompt.size - hits[chosen])

    def _hits(self, prompt: Prompt, names: Sequence[str]) -> dict[str, int]:
        """Bytes, by name."""
        hits = {name: prompt.bytes_of(self.index.hit(name, prompt.chain)) for name in names}
        if self._settings.shared_cache:
            best = max(hits.values())
            return dict.fromkeys(hits, best)
        return hits

    def _line(self, prompt: Prompt, warm: Sequence[str], hits: dict[str, int]) -> Line:
        """By what the warm line would have to compute: a prefix that only a cold upstream has is no help there."""
        hit = max((hits[name] for name in warm), default=0)
        is_cold = hit < self._settings.cold_below * prompt.size
        return Line.COLD if is_cold and prompt.size - hit >= self._settings.cold_from_bytes else Line.WARM

    def _cost(self, uncached: int, load: Load, name: str, line: Line) -> tuple[float, bool, int, int]:
        """What is computed before its first token. A warm request delays nobody, so it may go to a cold upstream that
        is free; a cold one among warm ones is what the lines are there to avoid."""
        cost = float(uncached + load.waiting + self._settings.bytes_of_running * load.running)
        is_strange = bool(self._cold) and (name in self._cold) != (line is Line.COLD)
        cost *= self._settings.spill if is_strange and line is Line.COLD else 1.0
        return cost, is_strange, load.running, self._last.get(name, 0)
