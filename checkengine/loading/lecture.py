"""The lecture's workload: sessions of several turns, of which each repeats a part of what was sent before.

Input/output tokens p1 32/64, p50 512/256, p99 4096/1024; share of the prompt that was sent before 5/60/98 %; turns a
session 7 at the median, 50 at p99; gaps between turns 10 s and 300 s. Sessions arrive as a Poisson process.
The lecture gives the quantiles only. Between them we draw from halves of a lognormal (a share: of a logit-normal), and
length and share independently of each other, so that a part of a session is like the whole. A first turn, and one that
repeats more than its session has sent, repeats the texts of its tenant (a system prompt, documents), which many
sessions share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from checkengine.loading.planned import Planned, with_shared

Z99 = 2.3263478740408408
"""Standard normal quantile of 0.99."""
MOST_Z = 3.0
UNDER_WAY = 1800.0
"""Seconds before the first one in which sessions began that are under way."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    p1: float
    p50: float
    p99: float

    def draw(self, random: np.random.Generator, count: int) -> np.ndarray:
        """float64[count]: lognormal on either side of the median."""
        z = np.clip(random.standard_normal(count), -MOST_Z, MOST_Z) / Z99
        ratio = np.where(z < 0, self.p50 / self.p1, self.p99 / self.p50)
        return np.asarray(self.p50 * ratio**z)


@dataclass(frozen=True, slots=True)
class LectureWorkload:
    inputs: Quantiles = Quantiles(32, 512, 4096)
    outputs: Quantiles = Quantiles(64, 256, 1024)
    hits: Quantiles = Quantiles(0.05, 0.60, 0.98)
    turns: Quantiles = Quantiles(1, 7, 50)
    gaps: Quantiles = Quantiles(10 / 30, 10, 300)
    """Seconds from the end of an answer, taken at 20 ms a token, to the next turn."""
    tenants: int = 32
    block_tokens: int = 16

    def requests(self, rate: float, seconds: float, seed: int, before: float = 0.0) -> list[Planned]:
        """`rate` requests a second from second -`before` to `seconds`, in order. Of sessions that are under way then
        only what follows is sent and shared; `shared_tokens` counts what really was sent before."""
        random = np.random.default_rng(seed)
        turns = float(np.mean(self._turns(np.random.default_rng(0), 100_000)))
        span = UNDER_WAY + before + seconds
        found: list[Planned] = []
        names = _Names()
        counts = self._turns(random, random.poisson(rate / turns * span))
        begins = random.uniform(-before - UNDER_WAY, seconds, len(counts))
        for session, (count, begin) in enumerate(zip(counts, begins, strict=True)):
            outputs = np.maximum(1, np.round(self.outputs.draw(random, count))).astype(int)
            times = begin + np.concatenate(([0.0], np.cumsum(self.gaps.draw(random, count) + 0.02 * outputs)[:-1]))
            sent = np.flatnonzero((times >= -before) & (times < seconds))
            if len(sent):
                found += self._session(session, times[sent], outputs[sent], random, names, int(sent[0]) + 1)
        return with_shared(sorted(found, key=lambda each: each.at))

    def _turns(self, random: np.random.Generator, count: int) -> np.ndarray:
        return np.maximum(1, np.round(self.turns.draw(random, count))).astype(int)

    def _session(
        self,
        session: int,
        times: np.ndarray,
        outputs: np.ndarray,
        random: np.random.Generator,
        names: _Names,
        turn: int,
    ) -> Iterator[Planned]:
        count, block = len(times), self.block_tokens
        inputs = np.maximum(1, np.round(self.inputs.draw(random, count))).astype(int)
        shared = np.round(inputs * share_of(self.hits, random, count) / block).astype(int)
        tenant = names.tenant(int(random.zipf(1.5)) % self.tenants)
        history: list[int] = []
        for index in range(count):
            whole = int(inputs[index]) // block
            wanted = min(int(shared[index]), whole)
            source = history if index > 0 and len(history) >= wanted else tenant
            chain = names.extended(source[:wanted], math.ceil(inputs[index] / block))
            if whole > len(history):
                history = chain[:whole]
            at, tokens = float(times[index]), int(inputs[index])
            yield Planned(at, tokens, int(outputs[index]), tuple(chain), block, 0, session, turn + index)


class _Names:
    """Of blocks: a counter, and for tenants a fixed range each."""

    TENANT_BLOCKS = 512

    def __init__(self) -> None:
        self._next = 1 << 40

    def tenant(self, number: int) -> list[int]:
        return [number * self.TENANT_BLOCKS + index for index in range(self.TENANT_BLOCKS)]

    def extended(self, prefix: list[int], blocks: int) -> list[int]:
        fresh = blocks - len(prefix)
        self._next += fresh
        return prefix + list(range(self._next - fresh, self._next))


def share_of(quantiles: Quantiles, random: np.random.Generator, count: int) -> np.ndarray:
    """float64[count] in (0, 1): as Quantiles.draw, of the odds p / (1 - p)."""
    odds = Quantiles(*(p / (1 - p) for p in (quantiles.p1, quantiles.p50, quantiles.p99))).draw(random, count)
    return np.asarray(odds / (1 + odds))
