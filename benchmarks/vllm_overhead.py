"""What guards cost inside vLLM, in interleaved pairs of rounds.

Two engines with the same arguments differ by up to a tenth on two cores, whichever of them is guarded (where their
memory lies, what else runs). So guards are measured in one engine, switched off and on from round to round; that engine
switched off is set beside a plain one, as its own arm. A figure is the median over pairs of (with / without − 1), with
the 95 % interval of that median. Runs in an environment with vLLM (`make vllm-setup`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from checkengine.benchmarks.figure import figure, interval
from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.vllm.switch_file import SIDECAR, SwitchFile
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
class State:
    """An engine, and what is switched on in it."""

    engine: str
    level: str | None = None
    """None: the sidecar is off, or the engine has none."""
    black_box: bool = False


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    measured: State
    beside: State


PLAIN, OFF = State("plain"), State("guarded")
ARMS = (
    Arm("screen", State("guarded", "screen"), OFF),
    Arm("full", State("guarded", "full"), OFF),
    Arm("full and black box", State("guarded", "full", True), OFF),
    Arm("switched off, beside plain vLLM", OFF, PLAIN),
    Arm("vLLM's NaN counter, beside plain vLLM", State("counting"), PLAIN),
)
SWITCH_SECONDS = 1.1
"""An engine core looks at its switches once a second, at the begin of a step."""


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
        bench = Bench(engines, SwitchFile(spool))
        return [each for batch in BATCHES for each in batch_figures(bench, batch, QUICK_PAIRS if quick else PAIRS)]


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


def batch_figures(bench: Bench, batch: int, pairs: int) -> list[dict[str, Any]]:
    for state in (PLAIN, OFF, *(arm.measured for arm in ARMS)):
        bench.round(state, batch)
    results = {arm.name: Result() for arm in ARMS}
    for number in range(pairs):
        # The order turns round from pair to pair, so that a drift of the machine falls on both sides.
        for arm in ARMS if number % 2 == 0 else reversed(ARMS):
            bench.pair(arm, batch, results[arm.name], measured_first=number % 2 == 0)
    milliseconds = 1e3 * statistics.median(results["full"].beside)
    first = figure(f"batch {batch}: inter-token latency without guards", milliseconds, "ms", UNBOUNDED)
    return [first, *(each for arm in ARMS for each in told(arm, batch, results[arm.name]))]


@dataclass(slots=True)
class Result:
    """Of one arm: ratios over its pairs."""

    latency: list[float] = field(default_factory=list)
    throughput: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    """Seconds between tokens on the other side."""
    spent: list[float] = field(default_factory=list)
    """CPU seconds a step in the worker's part."""


class Bench:
    """Engines by name; `switches` is the file that the guarded one reads."""

    def __init__(self, engines: Mapping[str, Any], switches: SwitchFile) -> None:
        self._engines, self._switches = engines, switches
        self._state: State | None = None

    def round(self, state: State, batch: int) -> Round:
        if state.engine == "guarded" and state != self._state:
            self._choose(state)
        return one_round(self._engines[state.engine], batch)

    def pair(self, arm: Arm, batch: int, result: Result, *, measured_first: bool) -> None:
        watched: Round
        if measured_first:
            watched, bare = self._watched(arm, batch, result), self.round(arm.beside, batch)
        else:
            bare, watched = self.round(arm.beside, batch), self._watched(arm, batch, result)
        result.beside.append(statistics.median(bare.between))
        result.latency.append(statistics.median(watched.between) / result.beside[-1] - 1)
        result.throughput.append((bare.tokens / bare.seconds) / (watched.tokens / watched.seconds) - 1)

    def _watched(self, arm: Arm, batch: int, result: Result) -> Round:
        if arm.measured.level is None:
            return self.round(arm.measured, batch)
        engine = self._engines[arm.measured.engine]
        before = cpu_seconds(engine)
        made = self.round(arm.measured, batch)
        result.spent.append((cpu_seconds(engine) - before) / len(made.between))
        return made

    def _choose(self, state: State) -> None:
        self._state = state
        on = state.level is not None
        self._switches.put(SIDECAR, "enable" if on else "disable")
        if on:
            self._engines["guarded"].collective_rpc("checkengine_set", args=(state.level, True, state.black_box))
        time.sleep(SWITCH_SECONDS)


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


def told(arm: Arm, batch: int, result: Result) -> list[dict[str, Any]]:
    """With its interval in the name."""
    target = TARGETS.get(arm.name, UNBOUNDED)
    found = []
    for name, values in (("inter-token latency", result.latency), ("time a token", result.throughput)):
        low, high = interval(values)
        title = f"batch {batch}, {arm.name}: {name}, more ({100 * low:+.1f} to {100 * high:+.1f})"
        found.append(figure(title, 100 * statistics.median(values), "%", target))
    if result.spent:
        title = f"batch {batch}, {arm.name}: CPU time in the worker's part, a step"
        found.append(figure(title, 1e6 * statistics.median(result.spent), "µs", UNBOUNDED))
    return found
