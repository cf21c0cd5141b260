"""Random windows of a live engine, replayed: is every one bit-exact from the step that it names?

The pool is small, prompts share prefixes, and requests are more than fit: blocks are reused and sequences preempted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checkengine.assemble import EngineShim, embed
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.prompts import QUESTIONS
from checkengine.benchmarks.replay_speed import speed_figures
from checkengine.config import Settings
from checkengine.engine_shim.capturing import take_capture
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.load import load_model
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.action import Action
from checkengine.guards.finding import Finding
from checkengine.guards.settings import LogitsSettings
from checkengine.replay.capture import Capture
from checkengine.replay.record import StepRecord
from checkengine.replay.replayer import Replayer
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings
from checkengine.tiny import tiny_model, tiny_tokenizer

MODEL = "smollm2-135m"
WANTED = 100


@dataclass(frozen=True, slots=True)
class Load:
    """What is served, and how windows are drawn from it."""

    block_size: int
    blocks: int
    tokens_per_step: int
    rows: int
    requests: int
    tokens: int
    longest_window: int


TINY = Load(block_size=8, blocks=22, tokens_per_step=32, rows=6, requests=12, tokens=24, longest_window=24)
DEMO = Load(block_size=32, blocks=10, tokens_per_step=96, rows=6, requests=16, tokens=64, longest_window=6)


class RandomCaptures:
    """A step listener: of every other step, a random few of its sequences, from a random step before on."""

    def __init__(self, engine: Engine, shim: EngineShim, load: Load, random: np.random.Generator) -> None:
        self.taken: list[Capture] = []
        self._engine, self._recorder = engine, shim.assembly.recorder
        self._load, self._random = load, random

    def step_done(self, record: StepRecord, findings: list[Finding], actions: list[Action]) -> None:
        random, recorder = self._random, self._recorder
        if recorder is None or random.random() < 0.5 or not len(record.sampled):
            return
        first = max(0, record.step - int(random.integers(0, self._load.longest_window)))
        count = int(random.integers(1, min(3, len(record.handles)) + 1))
        handles = random.choice(record.handles, size=count, replace=False).tolist()
        self.taken.append(take_capture(self._engine, recorder, handles, first_step=first))


@dataclass(slots=True)
class Tally:
    windows: int = 0
    bit_exact: int = 0
    steps: int = 0
    preemptions: int = 0
    hits: int = 0
    first_other: str = ""


def replay_figures(path: Path | None = None, *, wanted: int = WANTED, demo: bool = True) -> Iterator[dict[str, Any]]:
    """Windows of a tiny random model and, with `demo`, of the demo model; minutes."""
    yield from speed_figures(path, demo=demo)
    yield from figures_of("tiny", tally(tiny_model(), tiny_tokenizer(), TINY, wanted, tiny_prompts), wanted)
    if demo:
        model, tokenizer = load_model(path or model_directory(MODEL))
        prompts = DemoPrompts(tokenizer)
        yield from figures_of(MODEL, tally(model, tokenizer, DEMO, wanted, prompts), wanted)


def figures_of(name: str, seen: Tally, wanted: int) -> list[dict[str, Any]]:
    exact = figure(f"replay.bit_exact, {name}", seen.bit_exact, "windows", seen.windows, at_least=True)
    return [
        figure(f"replay.windows, {name}", seen.windows, "windows", wanted, at_least=True, peer=("steps", seen.steps)),
        {**exact, "first_other": seen.first_other},
        figure(f"replay.preemptions, {name}", seen.preemptions, "sequences", 1, at_least=True),
        figure(f"replay.prefix_hits, {name}", seen.hits, "tokens", 1, at_least=True),
    ]


def tally(model: Any, tokenizer: Any, load: Load, wanted: int, prompts: Any) -> Tally:
    """Serve one load after another until there are enough windows; each is replayed while the engine waits."""
    seen, seed = Tally(), 0
    while seen.windows < wanted:
        serve(model, tokenizer, load, seed, prompts, seen, wanted)
        seed += 1
    return seen


def serve(model: Any, tokenizer: Any, load: Load, seed: int, prompts: Any, seen: Tally, wanted: int) -> None:
    random = np.random.default_rng(seed)
    engine, shim = embed(model, tokenizer, settings_of(load))
    assert shim is not None
    captures = RandomCaptures(engine, shim, load, random)
    shim.parts.listeners.append(captures)
    for request in requests_of(load, random, prompts):
        engine.submit(request)
    executor = EmbeddedExecutor.over(model, engine.environment())
    while engine.has_work and seen.windows < wanted:
        engine.step()
        judge(executor, captures.taken, seen)
        captures.taken.clear()
    seen.preemptions += engine.stats.preemptions
    seen.hits += engine.stats.prefix_hit_tokens
    shim.close()


def judge(executor: EmbeddedExecutor, captures: Sequence[Capture], seen: Tally) -> None:
    for capture in captures:
        replay = Replayer(executor, capture).replay()
        if not replay.rows:
            continue  # prefill chunks only: nothing came out that could be compared
        seen.windows += 1
        seen.steps += replay.steps
        seen.bit_exact += replay.bit_exact
        seen.first_other = seen.first_other or ("" if replay.bit_exact else replay.words())


def settings_of(load: Load) -> Settings:
    return Settings(
        engine=EngineSettings(
            block_size=load.block_size,
            blocks=load.blocks,
            tokens_per_step=load.tokens_per_step,
            maximum_sequences=load.rows,
            threads=1,
        ),
        logits=LogitsSettings(level="full"),
        audit=AuditSettings(enabled=False),
        capture=CaptureSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
    )


def requests_of(load: Load, random: np.random.Generator, prompts: Any) -> list[GenerationRequest]:
    """Greedy and sampled in turns."""
    return [
        GenerationRequest(
            f"r{number}",
            prompts(random),
            SamplingParameters(
                temperature=0.7 * (number % 2), seed=number, max_tokens=int(random.integers(4, load.tokens + 1))
            ),
        )
        for number in range(load.requests)
    ]


def tiny_prompts(random: np.random.Generator) -> list[int]:
    """A shared beginning of random length, and an end of its own."""
    prompt: list[int] = [*range(3, 3 + int(random.integers(4, 25))), *random.integers(30, 150, 9).tolist()]
    return prompt


class DemoPrompts:
    """The same system message before every question: whole blocks of it are shared."""

    SYSTEM = (
        "You are a careful assistant. You answer in plain words and short sentences. You say so where you are not "
        "sure. You never invent names, numbers or quotations, and you never speak about yourself."
    )

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, random: np.random.Generator) -> list[int]:
        question = QUESTIONS[int(random.integers(len(QUESTIONS)))]
        chat = [{"role": "system", "content": self.SYSTEM}, {"role": "user", "content": question}]
        template = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
        prompt: list[int] = template["input_ids"]
        return prompt
