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

from checkengine.loading.planned import Planned

Z99 = 2.3263478740408408
"""Standard normal quantile of 0.99."""
MOST_Z = 3.0


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

    def requests(self, rate: float, seconds: float, seed: int, warm_up: float = 0.0) -> list[Planned]:
        """`rate` requests a second from second 0 to `seconds`, in order; sessions began up to `warm_up` before, and
        their earlier turns are given with negative times."""
        random = np.random.default_rng(seed)
        turns = max(1.0, float(np.mean(np.maximum(1, np.round(self.turns.draw(np.random.default_rng(0), 100_000))))))
        span = warm_up + seconds
        found = []
        names = _Names()
        for session in range(random.poisson(rate / turns * span)):
            begin = float(random.uniform(-warm_up, seconds))
            found += [each for each in self._session(session, begin, random, names) if each.at < seconds]
        return sorted(found, key=lambda each: each.at)

    def _session(self, session: int, begin: float, random: np.random.Generator, names: _Names) -> Iterator[Planned]:
        count = max(1, round(float(self.turns.draw(random, 1)[0])))
        inputs = np.maximum(1, np.round(self.inputs.draw(random, count))).astype(int)
        outputs = np.maximum(1, np.round(self.outputs.draw(random, count))).astype(int)
        shared = np.round(inputs * share_of(self.hits, random, count)).astype(int)
        gaps = self.gaps.draw(random, count)
        tenant = names.tenant(int(random.zipf(1.5)) % self.tenants)
        history: list[int] = []
        at = begin
        for index in range(count):
            blocks = math.ceil(inputs[index] / self.block_tokens)
            wanted = min(round(shared[index] / self.block_tokens), int(inputs[index]) // self.block_tokens)
            source = history if index > 0 and len(history) >= wanted else tenant
            reused = min(wanted, len(source))
            chain = names.extended(source, reused, blocks)
            whole = int(inputs[index]) // self.block_tokens
            if whole > len(history):
                history = list(chain[:whole])
            yield Planned(
                at, int(inputs[index]), int(outputs[index]), tuple(chain), self.block_tokens,
                reused * self.block_tokens, session, index + 1,
            )  # fmt: skip
            at += float(gaps[index]) + 0.02 * int(outputs[index])


class _Names:
    """Of blocks: a counter, and for tenants a fixed range each."""

    TENANT_BLOCKS = 512

    def __init__(self) -> None:
        self._next = 1 << 40

    def tenant(self, number: int) -> list[int]:
        return [number * self.TENANT_BLOCKS + index for index in range(self.TENANT_BLOCKS)]

    def extended(self, source: list[int], reused: int, blocks: int) -> list[int]:
        fresh = max(0, blocks - reused)
        self._next += fresh
        return source[:reused][:blocks] + list(range(self._next - fresh, self._next))


def share_of(quantiles: Quantiles, random: np.random.Generator, count: int) -> np.ndarray:
    """float64[count] in (0, 1): as Quantiles.draw, of the odds p / (1 - p)."""
    odds = Quantiles(*(p / (1 - p) for p in (quantiles.p1, quantiles.p50, quantiles.p99))).draw(random, count)
    return np.asarray(odds / (1 + odds))
