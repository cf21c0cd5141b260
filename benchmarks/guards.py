"""What guards, recorder and undo ring cost on the demo model, on and off in turns within one run.

All rows decode in lockstep; every few steps the shim is taken out of the engine or put back. Two neighbouring blocks,
one with it and one bare, are a pair, so that whatever drifts (length, clock, other processes) hits both alike.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from checkengine.assemble import EngineShim, embed
from checkengine.benchmarks.figure import figure, interval
from checkengine.benchmarks.prompts import QUESTIONS
from checkengine.config import Settings
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.load import load_model
from checkengine.engine_shim.engine.null_shim import NullShim
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.settings import LogitsSettings
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings

ChosenLevel = Literal["auto", "screen", "full"]

MODEL = "smollm2-135m"
BLOCK_STEPS = 5
"""The first step of a block is left out: with the shim it writes a checkpoint, since the recorder has a gap there."""
MOST_PROMPT = 96
WARM_STEPS = 70
"""Beyond the warm-up of the guards' budgets."""
CASES: tuple[tuple[int, ChosenLevel, float], ...] = (
    (1, "auto", 1.0),
    (8, "auto", 1.0),
    (16, "screen", 1.0),
    (16, "full", 2.5),
)
"""Rows, `[logits] level` and the most per cent of a step that checkengine may cost."""


@dataclass(slots=True)
class Block:
    """Medians over its steps, seconds; `ours` is CPU time in the shim and the undo ring."""

    wall: float
    cpu: float
    ours: float


@dataclass(slots=True)
class Cost:
    rows: int
    threads: int
    pairs: list[tuple[Block, Block]] = field(default_factory=list)
    """With the shim, and bare."""

    def slower(self) -> list[float]:
        """Per cent that a step takes longer, pair by pair."""
        return [100 * (on.wall / off.wall - 1) for on, off in self.pairs]

    def share(self) -> list[float]:
        """Our CPU time as per cent of the bare step, pair by pair."""
        return [100 * on.ours / off.wall for on, off in self.pairs]

    def milliseconds(self) -> float:
        return 1e3 * statistics.median(off.wall for _, off in self.pairs)


class TimedUndo:
    """The undo ring with its CPU time."""

    def __init__(self, engine: Engine) -> None:
        self.seconds = 0.0
        self.ring = engine.undo

    def save_from(self, step: int, slots: Any, memory: Mapping[str, torch.Tensor]) -> None:
        assert self.ring is not None
        began = time.thread_time()
        self.ring.save_from(step, slots, memory)
        self.seconds += time.thread_time() - began

    def clear(self, next_step: int) -> None:
        assert self.ring is not None
        self.ring.clear(next_step)

    def entries(self, since_step: int, blocks: Any = None, block_size: int = 1) -> Any:
        assert self.ring is not None
        return self.ring.entries(since_step, blocks, block_size)


def guard_figures(
    path: Path | None = None, *, pairs: int = 60, cases: Sequence[tuple[int, ChosenLevel, float]] = CASES
) -> list[dict[str, Any]]:
    """Two figures a case; about a minute for 16 rows. Threads are chosen once, with the largest batch."""
    model, tokenizer = load_model(path or model_directory(MODEL))
    threads = fastest_threads(model, tokenizer)
    figures = []
    for rows, level, most in cases:
        cost = measure(model, tokenizer, rows, level, pairs=pairs, threads=threads)
        figures += figures_of(cost, level, most)
    return figures


def figures_of(cost: Cost, level: ChosenLevel, most: float) -> list[dict[str, Any]]:
    name, slower, share = f"{level}, batch {cost.rows}", cost.slower(), cost.share()
    low, high = interval(slower)
    return [
        figure(
            f"guards.cpu, {name}",
            statistics.median(share),
            "% of a step",
            most,
            peer=(f"bare step with {cost.threads} threads, ms", cost.milliseconds()),
        ),
        {
            **figure(
                f"guards.slower, {name}",
                statistics.median(slower),
                "% in pairs",
                most,
                peer=("95 % interval's upper end", high),
            ),
            "interval": [low, high],
            "pairs": len(slower),
        },
    ]


def measure(model: Any, tokenizer: Any, rows: int, level: ChosenLevel, *, pairs: int, threads: int) -> Cost:
    tokens = WARM_STEPS + 2 * pairs * BLOCK_STEPS + rows
    engine, shim = build(model, tokenizer, rows, level, threads, tokens)
    timed = TimedUndo(engine)
    submit(engine, tokenizer, rows, tokens)
    cost = Cost(rows, threads)
    switch(engine, shim, timed, on=True)
    while engine.stats.waiting or engine.steps < WARM_STEPS:
        engine.step()
    for pair in range(pairs):
        order = (True, False) if pair % 2 == 0 else (False, True)
        blocks = {on: run_block(engine, shim, timed, on=on) for on in order}
        cost.pairs.append((blocks[True], blocks[False]))
    shim.close()
    return cost


def run_block(engine: Engine, shim: EngineShim, timed: TimedUndo, *, on: bool) -> Block:
    switch(engine, shim, timed, on=on)
    steps = []
    for _ in range(BLOCK_STEPS):
        ours, cpu, wall = shim.cpu_seconds + timed.seconds, time.thread_time(), time.perf_counter()
        engine.step()
        steps.append(
            (time.perf_counter() - wall, time.thread_time() - cpu, shim.cpu_seconds + timed.seconds - ours),
        )
    walls, cpus, own = zip(*steps[1:], strict=True)
    return Block(statistics.median(walls), statistics.median(cpus), statistics.median(own))


def switch(engine: Engine, shim: EngineShim, timed: TimedUndo, *, on: bool) -> None:
    """Bare is bare: no shim, no undo ring and no copy for it."""
    engine.shim = shim if on else NullShim()
    engine.undo = timed if on else None


def build(
    model: Any, tokenizer: Any, rows: int, level: ChosenLevel, threads: int, tokens: int
) -> tuple[Engine, EngineShim]:
    gc.collect()  # the engine before holds its memory in a cycle
    size = EngineSettings().block_size
    blocks = rows * -(-(tokens + MOST_PROMPT) // size)
    settings = Settings(
        engine=EngineSettings(prefix_cache=False, maximum_sequences=rows, threads=threads, blocks=blocks),
        logits=LogitsSettings(level=level),
        audit=AuditSettings(enabled=False),
        capture=CaptureSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
    )
    engine, shim = embed(model, tokenizer, settings)
    assert shim is not None
    return engine, shim


def submit(engine: Engine, tokenizer: Any, rows: int, tokens: int) -> None:
    for row in range(rows):
        chat = [{"role": "user", "content": QUESTIONS[row]}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        sampling = SamplingParameters(temperature=0, max_tokens=tokens, ignore_eos=True)
        engine.submit(GenerationRequest(f"row-{row}", prompt, sampling))


def fastest_threads(model: Any, tokenizer: Any, rows: int = 16, steps: int = 12) -> int:
    """1 up to torch's own choice: threads that share a core wait for each other."""
    seconds = {}
    for threads in range(1, torch.get_num_threads() + 1):
        engine, shim = build(model, tokenizer, rows, "screen", threads, steps)
        submit(engine, tokenizer, rows, steps)
        taken = []
        while engine.has_work:
            began = time.perf_counter()
            engine.step()
            taken.append(time.perf_counter() - began)
        seconds[threads] = float(np.median(taken[-steps // 2 :]))
        shim.close()
    return min(seconds, key=lambda threads: seconds[threads])
