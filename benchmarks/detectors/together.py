"""What all guards together cost in a step of batch 256, on the demo model's vocabulary and real text.

CPU time of the one thread that runs the steps. Row statistics are taken as given in the steps and measured apart.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.detectors import DetectorOptions
from checkengine.benchmarks.detectors.replies import healthy
from checkengine.benchmarks.detectors.tokenizer import encode, tokenizer
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.prompts import QUESTIONS
from checkengine.detectors.logits import row_stats, warm_up
from checkengine.detectors.logits.stats import RowStats
from checkengine.detectors.vocabulary import Vocabulary
from checkengine.guards.build import build_guards
from checkengine.guards.pipeline import Pipeline
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.step import SequenceStart, StepView

ROWS = 256
STEPS, STEPS_QUICK = 600, 120
WARM_STEPS = 16
"""Before the measured ones: what compiles or fills its tables does it there."""
PROMPT_TOKENS = 128
WAVERING = ("mistral-large",)
"""Answers in another language now and then: what is found there is right."""
REPLIES = 200
"""Of each language."""
REPEATS, REPEATS_QUICK = 7, 3
MICROSECONDS_PER_TOKEN = 2.0
MILLISECONDS_P99 = 1.0


def figures(options: DetectorOptions) -> list[dict[str, Any]]:
    """The two targets, each guard's part, the pipeline's own, what a sequence's begin and end cost, row statistics."""
    vocabulary = Vocabulary.from_tokenizer(tokenizer())
    steps = STEPS_QUICK if options.quick else STEPS
    streams = token_streams(texts_by_language(options), steps + WARM_STEPS + PROMPT_TOKENS)
    return [
        *guard_figures(vocabulary, streams, steps),
        *statistics_figures(len(vocabulary), REPEATS_QUICK if options.quick else REPEATS),
    ]


def texts_by_language(options: DetectorOptions) -> list[list[list[int]]]:
    """Token ids of healthy replies, language by language; of this project's English prompts where there is no data."""
    texts: dict[str, list[str]] = {}
    for reply in healthy(options):
        if reply.model in WAVERING or reply.task != "monolingual":
            continue
        if len(own := texts.setdefault(reply.language, [])) < REPLIES:
            own.append(reply.completion + "\n\n")
    if not texts:
        texts["en"] = [question + "\n\n" for question in QUESTIONS]
    return [[ids.tolist() for ids in encode(each)] for _, each in sorted(texts.items())]


def token_streams(languages: Sequence[Sequence[Sequence[int]]], tokens: int, rows: int = ROWS) -> list[list[int]]:
    """A stream a row, of texts of one language one after another, each row from another text on: no stream goes in a
    circle that is shorter than all texts of its language together."""
    streams = []
    for row in range(rows):
        texts = languages[row % len(languages)]
        stream: list[int] = []
        text = row * len(texts) // rows
        while len(stream) < tokens:
            stream += texts[text % len(texts)]
            text += 1
        streams.append(stream[:tokens])
    return streams


def guard_figures(vocabulary: Vocabulary, streams: Sequence[Sequence[int]], steps: int) -> list[dict[str, Any]]:
    settings = GuardsSettings()
    line = Pipeline(build_guards(settings, vocabulary), settings)
    names = tuple(f"row-{row}" for row in range(len(streams)))
    begun = begin(line, names, streams)
    views = step_views(names, streams, steps, len(vocabulary))
    findings = [finding for view in islice(views, WARM_STEPS) for finding in line.observe(view)]
    before = {name: state.cpu_seconds for name, state in line.states().items()}
    gc.collect()
    seconds = []
    for view in views:  # each is made just before it is read, as an engine does
        began = time.thread_time_ns()
        findings += line.observe(view)
        seconds.append((time.thread_time_ns() - began) * 1e-9)
    parts = {name: state.cpu_seconds - before[name] for name, state in line.states().items()}
    ended = end(line, names)
    off = sorted(name for name, state in line.states().items() if not state.active)
    kinds = Counter(f"{finding.guard} {finding.kind} {finding.severity.name}" for finding in findings)
    return [
        *total_figures(seconds, len(streams)),
        *part_figures(parts, sum(seconds), steps * len(streams)),
        figure("together.begin and end of a sequence", 1e6 * (begun + ended) / len(streams), "µs", 500.0),
        figure("together.findings on real text", len(findings), "findings", 0) | {"kinds": dict(kinds)},
        figure("together.guards that were switched off", len(off), "guards", 0) | {"which": off},
    ]


def begin(line: Pipeline, names: Sequence[str], streams: Sequence[Sequence[int]]) -> float:
    """CPU seconds. Half of the rows are greedy; the prompt is the stream's first tokens."""
    began = time.thread_time()
    for row, (name, stream) in enumerate(zip(names, streams, strict=True)):
        sampling = {"temperature": 0.0 if row % 2 else 0.8, "top_p": 0.95, "max_tokens": 4096}
        line.begin(SequenceStart(row, name, tuple(stream[:PROMPT_TOKENS]), sampling, stop_tokens=(0, 2)))
    return time.thread_time() - began


def end(line: Pipeline, names: Sequence[str]) -> float:
    began = time.thread_time()
    for name in names:
        line.forget(name)
    return time.thread_time() - began


def step_views(
    names: tuple[str, ...], streams: Sequence[Sequence[int]], steps: int, vocabulary: int
) -> Iterator[StepView]:
    """One token a row, with healthy statistics at level `full`."""
    rows = len(names)
    prompts = np.full(rows, PROMPT_TOKENS, np.int32)
    for step in range(steps + WARM_STEPS):
        tokens = tuple((stream[PROMPT_TOKENS + step],) for stream in streams)
        stats = healthy_statistics(np.array([row[0] for row in tokens], np.int64), step)
        yield StepView(step, step * 0.02, names, tokens, stats, prompts, np.full(rows, step, np.int32))


def healthy_statistics(best: np.ndarray[Any, np.dtype[np.int64]], seed: int) -> RowStats:
    """As a model that is sure of most tokens gives them; `best` are the rows' largest logits."""
    random, rows = np.random.default_rng(seed), len(best)
    maximum = random.normal(18, 2, rows).astype(np.float32)
    zeros = np.zeros(rows, np.int32)
    return RowStats(
        "full",
        nonfinite=np.zeros(rows, np.bool_),
        maximum=maximum,
        minimum=random.normal(-12, 1, rows).astype(np.float32),
        nan=zeros,
        positive_infinite=zeros,
        negative_infinite=zeros,
        argmax=best,
        logsumexp=maximum + random.exponential(0.5, rows).astype(np.float32),
        entropy=random.gamma(2.0, 0.6, rows).astype(np.float32),
        margin=random.exponential(2.0, rows).astype(np.float32),
        fingerprint=random.integers(0, 1 << 63, rows).astype(np.uint64),
    )


def total_figures(seconds: Sequence[float], rows: int) -> list[dict[str, Any]]:
    per_token = float(np.median(seconds)) / rows * 1e6
    slowest = float(np.percentile(seconds, 99)) * 1e3
    return [
        figure(f"together.cost, batch {rows}", per_token, "µs/token", MICROSECONDS_PER_TOKEN),
        figure(f"together.p99 of a step, batch {rows}", slowest, "ms", MILLISECONDS_P99),
    ]


def part_figures(parts: dict[str, float], total: float, tokens: int) -> list[dict[str, Any]]:
    """Nanoseconds a token of each guard, and its per cent of the whole; the pipeline's own is what is left."""
    whole = MICROSECONDS_PER_TOKEN * 1e3
    shares = {**dict(sorted(parts.items(), key=lambda part: -part[1])), "the pipeline": total - sum(parts.values())}
    return [
        figure(f"together.of which {name}", 1e9 * seconds / tokens, "ns/token", whole)
        | {"percent": round(100 * seconds / total, 1)}
        for name, seconds in shares.items()
    ]


def statistics_figures(vocabulary: int, repeats: int, rows: int = ROWS) -> list[dict[str, Any]]:
    """Row statistics at level `full`, one thread, beside the one count that engines run; in turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        warm_up((torch.float32,))
        logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0)) * 4
        ours, peers = [], []
        for _ in range(repeats):
            began = time.process_time()
            row_stats(logits, level="full")
            between = time.process_time()
            logits.isnan().sum(-1)
            ours.append(between - began)
            peers.append(time.process_time() - between)
    finally:
        torch.set_num_threads(threads)
    each, peer = (statistics.median(taken) / rows * 1e6 for taken in (ours, peers))
    name = f"together.row statistics apart, {rows} × {vocabulary}"
    return [figure(name, each, "µs/token", peer, peer=("isnan().sum(-1)", peer))]
