"""Where a returning conversation's blocks are found: the tiers' rule (least recently used gives way) on a workload.

No model runs here. The workload is the lecture's (7 turns in the middle, 50 at the ninety-ninth percentile; 10 seconds
between turns in the middle, 300 at the ninety-ninth), made from a seed; bytes are those of the demo model's blocks.
"""

from __future__ import annotations

import gzip
import heapq
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from checkengine.benchmarks.figure import figure

TIERS = ("device", "host", "disk")
NORMAL_99 = 2.3263
TRACE = "mooncake_conversation.jsonl.gz"


class Tiers:
    """Blocks in three places; each hands what it has no room for to the next one."""

    def __init__(self, device: int, host: int, disk: int) -> None:
        self._room = (device, host, disk)
        self._held: tuple[OrderedDict[Any, None], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        self.hits = [0, 0, 0]
        self.misses = 0

    def request(self, blocks: Iterable[Any]) -> None:
        """The prefix is looked up block by block; behind the first that is nowhere all are computed."""
        known = True
        for block in blocks:
            place = next((place for place, held in enumerate(self._held) if block in held), None) if known else None
            known = place is not None
            if place is None:
                self.misses += 1
                for held in self._held:
                    held.pop(block, None)
            else:
                self.hits[place] += 1
                del self._held[place][block]
            self._put(block)

    def _put(self, block: Any) -> None:
        for room, held in zip(self._room, self._held, strict=True):
            held[block] = None
            held.move_to_end(block)
            if len(held) <= room:
                return
            block, _ = held.popitem(last=False)

    @property
    def shares(self) -> tuple[float, ...]:
        total = sum(self.hits) + self.misses or 1
        return tuple(hits / total for hits in self.hits)


def lecture_turns(sessions: int, seed: int = 0, tokens: int = 512, block: int = 32) -> Iterator[list[tuple[int, int]]]:
    """Requests in order of time, each as the blocks of its conversation so far: (session, number)."""
    draw = np.random.default_rng(seed)
    turns = np.maximum(1, np.exp(np.log(7) + np.log(50 / 7) / NORMAL_99 * draw.normal(size=sessions))).astype(int)
    starts = np.cumsum(draw.exponential(2.0, sessions))
    waiting = [(float(start), session, 1) for session, start in enumerate(starts)]
    heapq.heapify(waiting)
    while waiting:
        at, session, turn = heapq.heappop(waiting)
        yield [(session, number) for number in range(turn * tokens // block)]
        if turn < turns[session]:
            gap = float(np.exp(np.log(10) + np.log(30) / NORMAL_99 * draw.normal()))
            heapq.heappush(waiting, (at + gap, session, turn + 1))


def mooncake_requests(data: Path) -> Iterator[list[int]]:
    """Blocks of 512 tokens as the trace names them, in its order."""
    with gzip.open(data / TRACE, "rt") as lines:
        for line in lines:
            yield json.loads(line)["hash_ids"]


def lecture_hits(*, quick: bool) -> list[dict[str, Any]]:
    """Shares of prompt blocks found in each tier, and computed, with tiers and without."""
    sessions = 200 if quick else 2000
    alone, tiered = Tiers(2_000, 0, 0), Tiers(2_000, 8_000, 100_000)
    for blocks in lecture_turns(sessions):
        alone.request(blocks)
        tiered.request(blocks)
    return hit_figures("lecture", alone, tiered)


def mooncake_hits(data: Path) -> list[dict[str, Any]]:
    """The same on the public trace in its own order; its blocks have 512 tokens. Device 1,000 blocks, host 4,000, disk
    50,000: no size of a real machine, but of the trace's 12,031 requests."""
    alone, tiered = Tiers(1_000, 0, 0), Tiers(1_000, 4_000, 50_000)
    for blocks in mooncake_requests(data):
        alone.request(blocks)
        tiered.request(blocks)
    return hit_figures("mooncake", alone, tiered)


def hit_figures(name: str, alone: Tiers, tiered: Tiers) -> list[dict[str, Any]]:
    without = sum(alone.shares)
    return [
        *(
            figure(f"tiers.{name}: prompt blocks found in {tier}", share, "share", 0, at_least=True)
            for tier, share in zip(TIERS, tiered.shares, strict=True)
        ),
        figure(
            f"tiers.{name}: found in any",
            sum(tiered.shares),
            "share",
            without,
            at_least=True,
            peer=("device only", without),
        ),
    ]
