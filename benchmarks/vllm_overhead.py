"""What guards cost inside vLLM: engines side by side in one run, and each round of one beside a round of the plain one.

Runs in an environment with vLLM (`make vllm-setup`). Idle engines wait without computing, and every arm has the same
ones beside it. A figure is the median over pairs of (guarded / plain − 1), with the 95 % interval of that median.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from checkengine.benchmarks.figure import figure, interval
from checkengine.engine_shim.models import model_directory
from checkengine.guards.errors import UserError

MODEL = "smollm2-135m"
BATCHES = (1, 8, 16)
TOKENS, PROMPT = 48, 64
PAIRS, QUICK_PAIRS = 12, 3
TARGETS = {"screen": 1.0, "full": 2.5}
"""Per cent of the median inter-token latency, and of the throughput."""
UNBOUNDED = 1e9
"""For figures that are only told."""


@dataclass(slots=True)
class Round:
    """One batch, from its first tokens to its last ones."""

    between: list[float] = field(default_factory=list)
    """Seconds between two outputs of the engine, behind the prefill."""
    seconds: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    engine: str
    level: str | None = None
    """None: as the engine was made."""
    black_box: bool = False


ARMS = (
    Arm("screen", "guarded", "screen"),
    Arm("full", "guarded", "full"),
    Arm("full and black box", "guarded", "full", True),
    Arm("vLLM's NaN counter", "counting"),
)


def vllm_figures(*, quick: bool = False) -> list[dict[str, Any]]:
    """Raises UserError where there is no vLLM."""
    try:
        import vllm  # noqa: F401
    except ImportError:
        raise UserError("`checkengine bench vllm` runs where vLLM is installed: make vllm-setup") from None
    with contextlib.ExitStack() as stack:
        spool = stack.enter_context(tempfile.TemporaryDirectory())
        engines = {
            "plain": stack.enter_context(engine({})),
            "guarded": stack.enter_context(engine({"CHECKENGINE_VLLM": "1", "CHECKENGINE_SPOOL__DIRECTORY": spool})),
            "counting": stack.enter_context(engine({"VLLM_COMPUTE_NANS_IN_LOGITS": "1"})),
        }
        return [each for batch in BATCHES for each in batch_figures(engines, batch, QUICK_PAIRS if quick else PAIRS)]


@contextlib.contextmanager
def engine(extra: Mapping[str, str]) -> Iterator[Any]:
    given = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "CHECKENGINE_VLLM": "0", **extra}
    old = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        from vllm import LLM

        made = LLM(
            str(model_directory(MODEL)),
            dtype="float32",
            max_model_len=1024,
            enforce_eager=True,
            max_num_seqs=max(BATCHES),
            enable_prefix_caching=False,
        )
    finally:
        for name, value in old.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
    try:
        yield made
    finally:
        made.llm_engine.engine_core.shutdown()
        gc.collect()


def batch_figures(engines: Mapping[str, Any], batch: int, pairs: int) -> list[dict[str, Any]]:
    for arm in ARMS:
        choose(engines[arm.engine], arm)
        one_round(engines[arm.engine], batch)
    one_round(engines["plain"], batch)
    found: list[dict[str, Any]] = []
    ratios: dict[str, tuple[list[float], list[float]]] = {arm.name: ([], []) for arm in ARMS}
    spent: dict[str, list[float]] = {arm.name: [] for arm in ARMS}
    plain: list[float] = []
    for number in range(pairs):
        # The order turns round from pair to pair, so that a drift of the machine falls on both sides.
        for arm in ARMS if number % 2 == 0 else reversed(ARMS):
            measure_pair(engines, arm, batch, number, ratios[arm.name], spent[arm.name], plain)
    for arm in ARMS:
        found += told(arm, batch, ratios[arm.name], spent[arm.name])
    milliseconds = 1e3 * statistics.median(plain)
    return [figure(f"plain vLLM, batch {batch}: inter-token latency", milliseconds, "ms", UNBOUNDED), *found]


def measure_pair(
    engines: Mapping[str, Any],
    arm: Arm,
    batch: int,
    number: int,
    ratios: tuple[list[float], list[float]],
    spent: list[float],
    plain: list[float],
) -> None:
    guarded = engines[arm.engine]
    choose(guarded, arm)
    sides = [engines["plain"], guarded]
    before = cpu_seconds(guarded) if arm.level else 0.0
    rounds = [one_round(side, batch) for side in (sides if number % 2 else sides[::-1])]
    bare, watched = rounds if number % 2 else rounds[::-1]
    if arm.level:
        spent.append((cpu_seconds(guarded) - before) / len(watched.between))
    plain.append(statistics.median(bare.between))
    ratios[0].append(statistics.median(watched.between) / statistics.median(bare.between) - 1)
    ratios[1].append((bare.tokens / bare.seconds) / (watched.tokens / watched.seconds) - 1)


def choose(engine: Any, arm: Arm) -> None:
    if arm.level is not None:
        engine.collective_rpc("checkengine_set", args=(arm.level, True, arm.black_box))


def cpu_seconds(engine: Any) -> float:
    """Of the worker's part."""
    return float(engine.collective_rpc("checkengine_cpu_seconds")[0])


def one_round(engine: Any, batch: int) -> Round:
    """The same prompts each time; end tokens are passed over, so that all rounds do the same work."""
    from vllm import SamplingParams

    random = np.random.default_rng(batch)
    parameters = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    for row in range(batch):
        prompt = {"prompt_token_ids": random.integers(100, 40_000, PROMPT).tolist()}
        engine.llm_engine.add_request(f"{time.monotonic_ns()}-{row}", prompt, parameters)
    made, last, started = Round(), None, time.perf_counter()
    while engine.llm_engine.has_unfinished_requests():
        outputs = engine.llm_engine.step()
        now = time.perf_counter()
        if outputs and len(outputs) == batch:
            if last is not None:
                made.between.append(now - last)
            last = now
    made.seconds, made.tokens = time.perf_counter() - started, batch * TOKENS
    return made


def told(
    arm: Arm, batch: int, ratios: tuple[Sequence[float], Sequence[float]], spent: Sequence[float]
) -> list[dict[str, Any]]:
    """With its interval in the name."""
    target = TARGETS.get(arm.name, UNBOUNDED)
    found = []
    for name, values in zip(("inter-token latency", "throughput"), ratios, strict=True):
        low, high = interval(values)
        title = f"{arm.name}, batch {batch}: {name} beside plain vLLM ({100 * low:+.1f} to {100 * high:+.1f})"
        found.append(figure(title, 100 * statistics.median(values), "%", target))
    if spent:
        title = f"{arm.name}, batch {batch}: CPU time in the worker's part, a step"
        found.append(figure(title, 1e6 * statistics.median(spent), "µs", UNBOUNDED))
    return found
