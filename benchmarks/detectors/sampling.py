"""What the sampler guard finds, how often it is wrong, and what it costs.

Rows of logits are made: Gaussian bodies with a peak, so that the chance of any but the best token runs evenly by its
logarithm from 1e-7 to 0.9, about as confident as large models' text; a quarter of the rows are rounded, which makes
ties. Engines are made too: float32 and bfloat16, filters in three orders.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.figure import figure
from checkengine.detectors import row_stats
from checkengine.guards.sampler import SamplerGuard
from checkengine.guards.settings import SamplerSettings
from checkengine.guards.step import SequenceStart, StepView

VOCABULARY = 384
ROWS = 250
GREEDY: dict[str, Any] = {"temperature": 0.0}
KINDS: tuple[dict[str, Any], ...] = (
    GREEDY,
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.8, "min_p": 0.05},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
)
ORDERS = ("kpm", "mkp", "pkm")
COST_COLUMNS = 151_936


def figures(options: DetectorOptions) -> list[dict[str, Any]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [
            *honest_figures(100_000 if options.quick else 1_000_000),
            *lost_figures(options.quick),
            *cost_figures(7 if options.quick else 25),
        ]
    finally:
        torch.set_num_threads(threads)


def honest_figures(samples: int) -> list[dict[str, Any]]:
    """Every kind of request in turn; a sequence is 500 tokens, then another takes its row."""
    findings = drawn = 0
    for dtype in (torch.float32, torch.bfloat16):
        run = Run(dtype, KINDS, lost=0.0, seed=1)
        for _ in range(samples // (2 * ROWS)):
            findings += len(run.step())
        drawn += run.step_number * ROWS
    return [figure("sampling.false", findings, f"findings on {drawn} honest samples", 0)]


def lost_figures(quick: bool) -> list[dict[str, Any]]:
    """A sampler that loses the best token in 1 % of its draws."""
    repeats = 20 if quick else 100
    greedy = [delay(GREEDY, 1, seed) for seed in range(repeats)]
    nucleus = [delay({"temperature": 1.0, "top_p": 0.9}, 1, seed) for seed in range(repeats)]
    sampled = [delay({"temperature": 1.0, "top_k": 50}, 1, seed) for seed in range(repeats // 2)]
    pooled = [delay({"temperature": 1.0, "top_k": 50}, 16, seed) for seed in range(repeats // 5)]
    return [
        found_within("sampling.lost greedy", greedy),
        found_within("sampling.lost top-p 0.9", nucleus),
        figure("sampling.lost sampled, median", statistics.median(sampled), "tokens of one sequence", 500),
        figure("sampling.lost sampled 16 rows, median", statistics.median(pooled), "tokens of each sequence", 500),
    ]


def found_within(name: str, delays: Sequence[int]) -> dict[str, Any]:
    # One in 0.99^-500 = 152 runs loses no token at all in 500.
    share = sum(delay < 500 for delay in delays) / len(delays)
    return figure(f"{name}, found within 500", share, f"of {len(delays)} runs", 0.95, at_least=True)


def delay(kind: dict[str, Any], rows: int, seed: int, most: int = 4000) -> int:
    """Tokens of each sequence until the first finding."""
    run = Run(torch.float32, (kind,), lost=0.01, seed=100 + seed, rows=rows, length=most)
    for token in range(most):
        if run.step():
            return token
    return most


class Run:
    """An engine of made-up logits under the guard."""

    def __init__(
        self,
        dtype: torch.dtype,
        kinds: Sequence[dict[str, Any]],
        *,
        lost: float,
        seed: int,
        rows: int = ROWS,
        length: int = 500,
    ) -> None:
        self.guard = SamplerGuard(SamplerSettings(measured_logits=rows * VOCABULARY))
        self.step_number = 0
        self._random = torch.Generator().manual_seed(seed)
        self._dtype, self._kinds, self._lost, self._rows, self._length = dtype, kinds, lost, rows, length
        self._names: tuple[str, ...] = ()

    def step(self) -> list[Any]:
        if self.step_number % self._length == 0:
            self._begin()
        logits = confident(self._rows, self._random).to(self._dtype)
        tokens = self._draw(logits)
        view = view_of(self._names, tokens, logits, self.step_number)
        self.step_number += 1
        return list(self.guard.observe(view))

    def _begin(self) -> None:
        for name in self._names:
            self.guard.forget(name)
        self._names = tuple(f"{self.step_number}-{row}" for row in range(self._rows))
        for row, name in enumerate(self._names):
            self.guard.begin(SequenceStart(row, name, sampling=self._kinds[row % len(self._kinds)]))

    def _draw(self, logits: torch.Tensor) -> list[int]:
        tokens = torch.empty(self._rows, dtype=torch.long)
        for number, kind in enumerate(self._kinds):
            rows = logits[number :: len(self._kinds)].clone()
            if self._lost:
                struck = torch.rand(len(rows), generator=self._random) < self._lost
                rows[struck, rows[struck].argmax(-1)] = -torch.inf
            order = ORDERS[self.step_number % len(ORDERS)]
            tokens[number :: len(self._kinds)] = draw(rows, kind, order, self._random)
        found: list[int] = tokens.tolist()
        return found


def confident(rows: int, random: torch.Generator, columns: int = VOCABULARY) -> torch.Tensor:
    logits = torch.randn(rows, columns, generator=random) * 2
    miss = torch.exp(torch.empty(rows).uniform_(float(np.log(1e-7)), float(np.log(0.9)), generator=random))
    best = torch.randint(columns, (rows,), generator=random)
    rest = logits.logsumexp(-1)
    logits[torch.arange(rows), best] = rest + torch.log((1 - miss) / miss)
    logits[::4] = logits[::4].round()
    return logits


def draw(logits: torch.Tensor, kind: dict[str, Any], order: str, random: torch.Generator) -> torch.Tensor:
    """As an engine does, in float32; the filters one after another."""
    if kind["temperature"] == 0:
        # Any of the equal ones, as kernels that reduce in another order take.
        tied = (logits == logits.amax(-1, keepdim=True)).float()
        return one_of(tied, random)
    scores = logits.float() / kind["temperature"]
    for step in order:
        if step == "k" and "top_k" in kind:
            scores = scores.masked_fill(scores < scores.topk(kind["top_k"]).values[:, -1:], -torch.inf)
        if step == "p" and "top_p" in kind:
            ordered, index = scores.softmax(-1).sort(descending=True)
            outside = torch.zeros_like(ordered, dtype=torch.bool)
            outside.scatter_(1, index, ordered.cumsum(-1) - ordered >= kind["top_p"])
            scores = scores.masked_fill(outside, -torch.inf)
        if step == "m" and "min_p" in kind:
            probabilities = scores.softmax(-1)
            scores = scores.masked_fill(probabilities < kind["min_p"] * probabilities.amax(-1, True), -torch.inf)
    return one_of(scores.softmax(-1), random)


def one_of(probabilities: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """The race of exponentials that vLLM draws by; a fifth of the time that torch.multinomial takes here."""
    return (probabilities / torch.empty_like(probabilities).exponential_(generator=random)).argmax(-1)


def _observe(guard: SamplerGuard, view: StepView) -> None:
    guard.observe(replace(view))


def view_of(names: tuple[str, ...], tokens: Sequence[int], logits: torch.Tensor, step: int) -> StepView:
    counts = np.full(len(names), step, np.int32)
    pairs = tuple([(token,) for token in tokens])
    return StepView(step, 0.0, names, pairs, row_stats(logits, "screen"), counts, counts, scores=logits)


def cost_figures(repeats: int) -> list[dict[str, Any]]:
    """CPU time of `observe` for 256 rows; the row statistics that it is given are not its cost."""
    logits = torch.randn(256, COST_COLUMNS, generator=torch.Generator().manual_seed(3)) * 3
    found = []
    for name, kind, most in (("greedy", GREEDY, 2000.0), ("sampled", {"temperature": 1.0, "top_p": 0.95}, 2000.0)):
        guard = SamplerGuard(SamplerSettings())
        names = tuple(f"s{row}" for row in range(256))
        for row, sequence in enumerate(names):
            guard.begin(SequenceStart(row, sequence, sampling=kind))
        tokens = draw(logits, kind, "kpm", torch.Generator().manual_seed(4)).tolist()
        view = view_of(names, tokens, logits, 0)
        nan_check = median_nanoseconds(lambda: logits.isnan().sum(-1), max(repeats // 3, 3))
        nanoseconds = median_nanoseconds(partial(_observe, guard, view), repeats)
        peer = ("logits.isnan().sum(-1), ns", nan_check / 256)
        found.append(figure(f"sampling.cost {name}, batch 256", nanoseconds / 256, "ns a token", most, peer=peer))
    return found


def median_nanoseconds(call: Callable[[], object], repeats: int) -> float:
    return statistics.median(_timed(call, repeats))


def _timed(call: Callable[[], object], repeats: int) -> Iterator[int]:
    call()
    for _ in range(repeats):
        before = time.process_time_ns()
        call()
        yield time.process_time_ns() - before
