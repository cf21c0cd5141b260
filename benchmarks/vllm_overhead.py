"""What guards cost inside vLLM, in interleaved pairs of rounds.

Two engines with the same arguments differ by up to a tenth on two cores, whichever of them is guarded (where their
memory lies, what else runs). So guards are measured in one engine, switched off and on from round to round; that engine
switched off is set beside a plain one, as its own arm. A cycle runs every state once, forwards and backwards in turn:
a drift of the machine falls on all of them. A figure is the median over cycles of (with / without − 1), with the
95 % interval of that median. Prompts have different lengths, as in real traffic: sequences in lock step would take new
groups of KV slots in the same step. KV memory is small enough to be used again and again, as in a server that has run
for a while. Runs in an environment with vLLM (`make vllm-setup`).
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
CYCLES = {1: 12, 8: 8, 16: 6}
"""By batch. All of it takes about ten minutes on two cores."""
QUICK_CYCLES = 2
TOKENS, PROMPT, LONGER = 33, 48, 3
"""Tokens of an answer, of the first prompt, and how much longer each further prompt is."""
BLOCKS = 40
TARGETS = {"screen": 1.0, "full": 2.5, "full and black box": 2.5}
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
    spent: float | None = None
    """CPU seconds in the worker's part, where something is on."""


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
STATES = (
    OFF,
    State("guarded", "screen"),
    State("guarded", "full"),
    State("guarded", "full", True),
    PLAIN,
    ARMS[-1].measured,
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
        cycles = dict.fromkeys(CYCLES, QUICK_CYCLES) if quick else CYCLES
        return [each for batch, count in cycles.items() for each in batch_figures(bench, batch, count)]


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
            max_num_seqs=max(CYCLES),
            num_gpu_blocks_override=BLOCKS,
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


def batch_figures(bench: Bench, batch: int, cycles: int) -> list[dict[str, Any]]:
    for state in STATES:
        bench.round(state, batch)
    results = {arm.name: Result() for arm in ARMS}
    for number in range(cycles):
        rounds = {state: bench.round(state, batch) for state in (STATES if number % 2 == 0 else STATES[::-1])}
        for arm in ARMS:
            results[arm.name].add(rounds[arm.measured], rounds[arm.beside])
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

    def add(self, watched: Round, bare: Round) -> None:
        self.beside.append(statistics.median(bare.between))
        self.latency.append(statistics.median(watched.between) / self.beside[-1] - 1)
        self.throughput.append((bare.tokens / bare.seconds) / (watched.tokens / watched.seconds) - 1)
        if watched.spent is not None:
            self.spent.append(watched.spent / len(watched.between))


class Bench:
    """Engines by name; `switches` is the file that the guarded one reads."""

    def __init__(self, engines: Mapping[str, Any], switches: SwitchFile) -> None:
        self._engines, self._switches = engines, switches
        self._state: State | None = None

    def round(self, state: State, batch: int) -> Round:
        engine = self._engines[state.engine]
        if state.engine == "guarded" and state != self._state:
            self._choose(state)
        before = cpu_seconds(engine) if state.level is not None else 0.0
        made = one_round(engine, batch)
        if state.level is not None:
            made.spent = cpu_seconds(engine) - before
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
        prompt = {"prompt_token_ids": random.integers(100, 40_000, PROMPT + LONGER * row).tolist()}
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
