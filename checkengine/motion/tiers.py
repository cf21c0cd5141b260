"""`checkengine drill tiers`: blocks that break on their way are named and refused; what tiers save on a real model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from checkengine.benchmarks.figure import figure
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.engine.tier_seam import CAPTURES
from checkengine.engine_shim.settings import EngineSettings
from checkengine.engine_shim.tier_settings import TierSettings
from checkengine.engine_shim.tiers import FaultyMove, TieredBlocks
from checkengine.engine_shim.tiers.moves import PLANTED, Planted, sides_of
from checkengine.guards.finding import Finding
from checkengine.motion.lru import TRACE, lecture_hits, mooncake_hits
from checkengine.motion.seal_speed import seal_figures
from checkengine.replay.transfer import Side, judge_transfer
from checkengine.replay.transfer_file import SUFFIX, read_transfer
from checkengine.tiny import tiny_model

BLOCK = 8
CONVERSATION = 41
NAMES = ("a", "b", "c")
MODEL = "smollm2-135m"
REAL_BLOCK = 32
PROMPT = 448
"""Tokens of a returning session's history."""
OUTPUT = 4


def figures(*, quick: bool = False, data: Path | None = None) -> list[dict[str, Any]]:
    """`data`: folder of public data; the Mooncake trace is left out where it is not there."""
    traced = data is not None and (data / TRACE).is_file()
    return [
        *planted_figures(1 if quick else 8),
        *seal_figures(),
        *lecture_hits(quick=quick),
        *(mooncake_hits(data) if traced and data is not None else ()),
        *(() if quick else returning_figures()),
    ]


# Planted faults


def planted_figures(seeds: int) -> list[dict[str, Any]]:
    """Every class on every side that it can strike on, in every place of a conversation's five blocks."""
    caught = equal = early = cases = sided = 0
    for planted, side in ((each, side) for each in PLANTED for side in sides_of(each)):
        for seed in range(seeds):
            found = planted_run(planted, seed, side)
            cases += 1
            caught += is_named(found.told, planted)
            sided += found.sides == [side]
            equal += found.answer == found.clean
            early += found.cached == BLOCK * found.struck
    of = f"share of {cases}"
    return [
        figure("tiers.broken blocks caught and named", caught / cases, of, 1, at_least=True),
        figure(
            "tiers.side that broke it named by the replay of both sides' records", sided / cases, of, 1, at_least=True
        ),
        figure("tiers.refused before the first token", early / cases, of, 1, at_least=True),
        figure("tiers.answers equal to the clean run's", equal / cases, of, 1, at_least=True),
    ]


@dataclass(frozen=True, slots=True)
class PlantedRun:
    told: list[Finding]
    sides: list[Side]
    """As the captures of this run tell them when they are read again."""
    answer: list[int]
    clean: list[int]
    struck: int
    """The broken block's number."""
    cached: int
    """Prompt tokens taken from a tier."""


def is_named(told: list[Finding], planted: str) -> bool:
    wanted = "another_tenants_block" if planted == "other tenant" else planted.replace(" ", "_")
    return len(told) == 1 and bool(told[0].evidence.get(wanted))


def planted_run(planted: Planted, seed: int, side: Side | None = None) -> PlantedRun:
    """A conversation comes back from host memory, and one of its blocks breaks on the way."""
    strike = seed % 5
    with tempfile.TemporaryDirectory() as folder:
        tiers = TierSettings(host_bytes=1 << 20, directory=Path(folder))
        settings = EngineSettings(block_size=BLOCK, blocks=9, threads=1, tiers=tiers)
        engine, clean = Engine(_tiny(), None, settings), {}
        seam = _seam(engine)
        told: list[Finding] = []
        seam.tell = told.append
        seam.blocks.move = FaultyMove(planted, strike, seed, side)
        for name in NAMES:
            clean[name] = serve(engine, name, conversation(name))[0]
        answer, cached, _ = serve(engine, NAMES[0], conversation(NAMES[0]))
        records = [read_transfer(path) for path in (Path(folder) / CAPTURES).glob(f"*{SUFFIX}")]
        sides = [judge_transfer(record).side for record in records]
        # A conversation's last block is given up first.
        struck = CONVERSATION // BLOCK - 1 - strike if side is Side.PREFILL else strike
        return PlantedRun(told, sides, answer, clean[NAMES[0]], struck, cached)


def _seam(engine: Engine) -> Any:
    assert engine.tiers is not None
    return engine.tiers


def _tiny() -> Any:
    return tiny_model()


def conversation(name: str, length: int = CONVERSATION) -> list[int]:
    return [(ord(name[0]) * 7 + index * 3) % 150 + 3 for index in range(length)]


def serve(engine: Engine, name: str, prompt: list[int], output: int = 6) -> tuple[list[int], int, float]:
    """The answer's tokens, prompt tokens found in memory of some tier, and seconds to the first token."""
    began, first = time.perf_counter(), 0.0
    engine.submit(
        GenerationRequest(name, prompt, SamplingParameters(temperature=0, max_tokens=output, ignore_eos=True))
    )
    outputs = []
    while engine.has_work:
        outputs += engine.step()
        first = first or (time.perf_counter() - began if outputs else 0.0)
    return [token for each in outputs for token in each.tokens], outputs[-1].cached_tokens, first


# What tiers save


def returning_figures(rounds: int = 3) -> list[dict[str, Any]]:
    """A session comes back after others have pushed its blocks out of the engine's memory: time to its first token."""
    from checkengine.engine_shim.engine.load import load_model
    from checkengine.engine_shim.models import model_directory

    model, _ = load_model(model_directory(MODEL))
    modes: dict[str, Callable[[Path], TierSettings]] = {
        "no tiers": lambda folder: TierSettings(),
        "host": lambda folder: TierSettings(host_bytes=1 << 30),
        "disk": lambda folder: TierSettings(host_bytes=1, disk_bytes=1 << 32, directory=folder),
        "disk, prefetched": lambda folder: TierSettings(host_bytes=1 << 27, disk_bytes=1 << 32, directory=folder),
    }
    spent: dict[str, list[float]] = {mode: [] for mode in modes}
    waits: dict[str, tuple[float, float]] = {}
    equal = True
    clean: list[int] | None = None
    for _ in range(rounds):
        for mode, tiers in modes.items():
            with engine_of(model, tiers) as engine:
                answer, seconds = _return(engine, prefetch=mode == "disk, prefetched")
                clean = clean or answer
                equal = equal and answer == clean
                spent[mode].append(seconds)
                if engine.tiers is not None:
                    waits[mode] = _bandwidth(engine.tiers.blocks)
    base = median(spent["no tiers"])
    return [
        *(
            figure(f"tiers.first token of a returning session, {mode}", median(seconds) / base, "x no tiers", 1.0)
            for mode, seconds in spent.items()
            if mode != "no tiers"
        ),
        figure("tiers.first token without tiers", base * 1e3, "ms", 60_000),
        *(
            figure(f"tiers.{mode}: blocks brought back at", rate / 1e9, "GB/s", 0.01, at_least=True)
            | {"peer": "ms that the engine waited", "peer_value": 1e3 * wait}
            for mode, (rate, wait) in waits.items()
        ),
        figure("tiers.returning answers equal", float(equal), "share of all", 1, at_least=True),
    ]


@contextmanager
def engine_of(model: Any, tiers: Callable[[Path], TierSettings]) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        blocks = PROMPT // REAL_BLOCK + 3
        settings = EngineSettings(block_size=REAL_BLOCK, blocks=blocks, threads=1, tiers=tiers(Path(folder)))
        engine = Engine(model, None, settings)
        try:
            yield engine
        finally:
            if engine.tiers is not None:
                engine.tiers.blocks.close()


def _return(engine: Engine, *, prefetch: bool) -> tuple[list[int], float]:
    prompts = {name: [(ord(name) * 131 + index * 7) % 40_000 + 100 for index in range(PROMPT)] for name in "abc"}
    for name, prompt in prompts.items():
        serve(engine, name, prompt, OUTPUT)
    if engine.tiers is not None:
        engine.tiers.blocks.wait()
        if prefetch:
            engine.tiers.prefetch(prompts["a"])
            engine.tiers.blocks.wait()
    answer, _, seconds = serve(engine, "a", prompts["a"], OUTPUT)
    return answer, seconds


def _bandwidth(blocks: TieredBlocks) -> tuple[float, float]:
    """Bytes a second of what came back, and the seconds that the engine's thread waited for it."""
    waited = blocks.counts.host_seconds + blocks.counts.disk_seconds
    return blocks.counts.bytes_in / max(waited, 1e-9), waited
