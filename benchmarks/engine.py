"""How fast the embedded engine is beside transformers' own generate(), on the same cores and in the same run.

Every comparison is interleaved: ours, theirs, ours, theirs; the ratio is the median over pairs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.figure import figure
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.load import load_model
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.settings import EngineSettings

MODEL = "smollm2-135m"
REQUESTS, ROWS, LOCKSTEP_TOKENS, ALONE = 64, 16, 48, 4
BATCHES = (16, 32, 64)
PAIRS = 3


@dataclass(frozen=True, slots=True)
class Job:
    prompt: list[int]
    tokens: int
    """Output tokens; end tokens are ignored on both sides, so that both do the same work."""


def mixed_jobs(count: int, seed: int = 1) -> list[Job]:
    """Prompts of 16 to 384 tokens and outputs of 8 to 96, log-uniform."""
    random = np.random.default_rng(seed)
    prompts = np.exp(random.uniform(np.log(16), np.log(384), count)).astype(int)
    outputs = np.exp(random.uniform(np.log(8), np.log(96), count)).astype(int)
    return [Job(random.integers(100, 40_000, p).tolist(), int(n)) for p, n in zip(prompts, outputs, strict=True)]


def lockstep_jobs(count: int, tokens: int) -> list[Job]:
    random = np.random.default_rng(2)
    return [Job(random.integers(100, 40_000, 64).tolist(), tokens) for _ in range(count)]


class Ours:
    def __init__(self, path: Path) -> None:
        model, tokenizer = load_model(path)
        # Every run computes everything: no hit in the prefix cache of the run before.
        settings = EngineSettings(prefix_cache=False, maximum_sequences=32, threads=1)
        self.engine = Engine(model, tokenizer, settings)
        self.threads = 1
        self._runs = 0

    def run(self, jobs: Sequence[Job]) -> float:
        """Seconds."""
        torch.set_num_threads(self.threads)
        self._runs += 1
        begin = time.perf_counter()
        for i, job in enumerate(jobs):
            sampling = SamplingParameters(temperature=0, max_tokens=job.tokens, ignore_eos=True)
            self.engine.submit(GenerationRequest(f"{self._runs}-{i}", job.prompt, sampling))
        while self.engine.has_work:
            self.engine.step()
        return time.perf_counter() - begin

    def overhead(self) -> float:
        """CPU milliseconds of a step of 16 decode rows outside the model's forward, median."""
        forward, spent = self.engine.runner.forward, [0.0]

        def timed(batch: Any) -> torch.Tensor:
            begin = time.thread_time()
            logits = forward(batch)
            spent[0] = time.thread_time() - begin
            return logits

        for i, job in enumerate(lockstep_jobs(ROWS, 30)):
            sampling = SamplingParameters(temperature=0, max_tokens=job.tokens, ignore_eos=True)
            self.engine.submit(GenerationRequest(f"overhead-{i}", job.prompt, sampling))
        self.engine.runner.forward = timed  # type: ignore[method-assign, assignment]
        rest = []
        while self.engine.has_work:
            begin = time.thread_time()
            self.engine.step()
            rest.append(time.thread_time() - begin - spent[0])
        self.engine.runner.forward = forward  # type: ignore[method-assign]
        return statistics.median(rest) * 1e3


class Theirs:
    """transformers' batched generate(): jobs sorted by output length, so that a batch ends together."""

    def __init__(self, path: Path) -> None:
        self.model, _ = load_model(path)
        self.threads = 1
        self.batch = ROWS

    def run(self, jobs: Sequence[Job]) -> float:
        torch.set_num_threads(self.threads)
        begin = time.perf_counter()
        ordered = sorted(jobs, key=lambda job: (job.tokens, len(job.prompt)))
        for first in range(0, len(ordered), self.batch):
            self._generate(ordered[first : first + self.batch])
        return time.perf_counter() - begin

    def run_alone(self, jobs: Sequence[Job]) -> float:
        torch.set_num_threads(self.threads)
        begin = time.perf_counter()
        for job in jobs:
            self._generate([job])
        return time.perf_counter() - begin

    def _generate(self, jobs: Sequence[Job]) -> None:
        width, tokens = max(len(job.prompt) for job in jobs), max(job.tokens for job in jobs)
        padded = [[0] * (width - len(job.prompt)) + job.prompt for job in jobs]
        mask = [[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in jobs]
        with torch.no_grad():
            self.model.generate(
                torch.tensor(padded),
                attention_mask=torch.tensor(mask),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )


def engine_figures(path: Path | None = None, *, pairs: int = PAIRS) -> list[dict[str, Any]]:
    """Figures of the demo model, or of the model at `path`; minutes."""
    where = path or model_directory(MODEL)
    ours, theirs = Ours(where), Theirs(where)
    choose_threads(ours, theirs)
    mixed, lockstep = mixed_jobs(REQUESTS), lockstep_jobs(ROWS, LOCKSTEP_TOKENS)
    theirs.batch = choose_batch(theirs, mixed)
    mixed_ours, mixed_theirs = interleave(lambda: ours.run(mixed), lambda: theirs.run(mixed), pairs)
    theirs.batch = ROWS
    step_ours, step_theirs = interleave(lambda: ours.run(lockstep), lambda: theirs.run(lockstep), pairs)
    alone = mixed[:: REQUESTS // ALONE]
    rate_alone = sum(job.tokens for job in alone) / theirs.run_alone(alone)
    rate = sum(job.tokens for job in mixed) / statistics.median(mixed_ours)
    rate_lockstep = ROWS * LOCKSTEP_TOKENS / statistics.median(step_ours)
    return [
        figure("engine.threads", ours.threads, "threads", os.cpu_count() or 1, peer=("transformers", theirs.threads)),
        figure(
            "engine.mixed_64",
            ratio(mixed_ours, mixed_theirs),
            "× transformers' time",
            1.0,
            peer=("transformers batched generate, seconds", statistics.median(mixed_theirs)),
        ),
        figure(
            "engine.lockstep_16",
            ratio(step_theirs, step_ours),
            "× transformers' rate",
            0.95,
            at_least=True,
            peer=("engine, tokens/s", rate_lockstep),
        ),
        figure(
            "engine.against_one_by_one",
            rate / rate_alone,
            "× one-by-one rate",
            4.0,
            at_least=True,
            peer=("transformers one by one, tokens/s", rate_alone),
        ),
        figure("engine.step_overhead_16", ours.overhead(), "ms CPU", 1.0),
    ]


def choose_threads(ours: Ours, theirs: Theirs) -> None:
    """For each side the number of threads, up to the cores, with the shortest of a few runs of a dozen steps."""
    jobs = lockstep_jobs(ROWS, 12)
    for side in (ours, theirs):
        seconds = {}
        for threads in range(1, (os.cpu_count() or 1) + 1):
            side.threads = threads
            seconds[threads] = min(side.run(jobs) for _ in range(2))
        side.threads = min(seconds, key=lambda threads: seconds[threads])


def choose_batch(theirs: Theirs, jobs: Sequence[Job]) -> int:
    """The batch size with which transformers is fastest on these jobs."""
    seconds = {}
    for batch in BATCHES:
        theirs.batch = batch
        seconds[batch] = theirs.run(jobs)
    return min(seconds, key=lambda batch: seconds[batch])


def interleave(ours: Callable[[], float], theirs: Callable[[], float], pairs: int) -> tuple[list[float], list[float]]:
    both = [(ours(), theirs()) for _ in range(pairs)]
    return [a for a, _ in both], [b for _, b in both]


def ratio(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))
