"""Clean replays: windows of a live engine without a fault, each judged. None may be convicted of anything.

Loads are those of `bench replay`: a small pool, shared prefixes, chunks and preemptions. Most windows are judged as an
audit judges them; on every tenth a finding is pinned, so that the judge makes every test that it has.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from checkengine.assemble import embed
from checkengine.benchmarks.corpus_numerics import with_finding
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.pooled import one_thread, pooled, stopped
from checkengine.benchmarks.replay import TINY, RandomCaptures, requests_of, settings_of, tiny_prompts
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.investigate import investigate
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import Verdict
from checkengine.replay.windows import build_window
from checkengine.selftest_judging import CONVICTIONS
from checkengine.tiny import tiny_model, tiny_tokenizer

WINDOWS, QUICK_WINDOWS = 10_000, 40
MOST_SECONDS = 600.0
LOAD = replace(TINY, longest_window=2)
PINNED = 10
"""Of so many windows one has a finding pinned on it."""


@dataclass(slots=True)
class Clean:
    windows: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    convicted: list[str] = field(default_factory=list)

    def add(self, other: Clean) -> None:
        self.windows += other.windows
        self.kinds.update(other.kinds)
        self.convicted += other.convicted


def clean_replay_figures(
    windows: int = WINDOWS, most_seconds: float = MOST_SECONDS, *, processes: int | None = None
) -> Iterator[dict[str, Any]]:
    seen = judged_until(windows, most_seconds, processes)
    name = f"faults.false convictions in {seen.windows:,} clean replays{stopped(seen.windows, windows, most_seconds)}"
    yield {**figure(name, len(seen.convicted), "windows", 0), "verdicts": dict(seen.kinds), "wrong": seen.convicted}


def judged_until(windows: int, most_seconds: float, processes: int | None) -> Clean:
    """Load after load, until there are so many windows or time is up."""
    seen = Clean()
    found = pooled(judged_load, count(), most_seconds, processes=processes)
    for each in found:
        seen.add(each)
        if seen.windows >= windows:
            found.close()
    return seen


def judged_load(seed: int) -> Clean:
    """One load, served to its end; each of its windows is judged while the engine waits."""
    gc.collect()  # the engine before holds its memory in a cycle
    seen, random = Clean(), np.random.default_rng(seed)
    engine, shim = embed(model(), tiny_tokenizer(), settings_of(LOAD))
    assert shim is not None
    captures = RandomCaptures(engine, shim, LOAD, random)
    shim.parts.listeners.append(captures)
    for request in requests_of(LOAD, random, tiny_prompts):
        engine.submit(request)
    executor = EmbeddedExecutor.over(model(), engine.environment())
    while engine.has_work:
        engine.step()
        for capture in captures.taken:
            try:
                verdict = verdict_on(capture, executor, pinned=seen.windows % PINNED == 0)
            except CannotReplayError:  # Its only sequence ended in the window: nobody knows its earlier tokens.
                seen.kinds["cannot be replayed"] += 1
                continue
            seen.windows += 1
            seen.kinds[str(verdict.kind)] += 1
            if verdict.kind in CONVICTIONS:
                seen.convicted.append(f"load {seed}, step {capture.window.last_step}: {verdict.sentence}")
        captures.taken.clear()
    shim.close()
    return seen


def verdict_on(capture: Capture, executor: EmbeddedExecutor, *, pinned: bool) -> Verdict:
    if not pinned:
        return Judge(executor).judge(build_window(capture))
    verdict = investigate(with_finding(capture), executor, None).verdict
    assert verdict is not None
    return verdict


@cache
def model() -> Any:
    return tiny_model()


def main() -> None:
    """`python -m checkengine.benchmarks.corpus_clean WINDOWS [PROCESSES [SECONDS]]`"""
    one_thread()
    began, processes = time.monotonic(), int(sys.argv[2]) if len(sys.argv) > 2 else None
    most_seconds = float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")
    for each in clean_replay_figures(int(sys.argv[1]), most_seconds, processes=processes):
        print(each, f"{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
