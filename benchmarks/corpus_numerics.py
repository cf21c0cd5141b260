"""Runs that differ in rounding only: other summation orders, batches, chunks, dtypes, thread counts, quantised weights.
None may be called a defect, though a finding is pinned on each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.pooled import pooled, stopped
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import HEALTHY, Fault
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.capture import Capture
from checkengine.replay.investigate import investigate
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.record import StepRecord
from checkengine.selftest_recording import record_run
from checkengine.tiny import tiny_model

DTYPES = ("float32", "bfloat16", "float16")
ORDERS = ("as it is", *HEALTHY)
WEIGHTS = ("as they are", "int8", "int4")
BATCHES: tuple[Mapping[str, Any], ...] = (
    {"tokens_per_step": 40, "maximum_sequences": 6, "threads": 1},
    {"tokens_per_step": 12, "maximum_sequences": 2, "threads": 1},
    {"tokens_per_step": 24, "maximum_sequences": 4, "threads": 2},
    {"tokens_per_step": 64, "maximum_sequences": 3, "threads": 1},
)
MOST_SECONDS = 600.0
UPDATED = 24
"""Cases whose record was made by another order of summation than replays it."""
AT, WINDOW = 8, 4
GROUP = 16
"""Weights of one scale, in four bits."""
DEFECTS = (VerdictKind.CODE_DEFECT, VerdictKind.NAN_UNSAFE, VerdictKind.NONDETERMINISM, VerdictKind.TRANSIENT)


@dataclass(frozen=True, slots=True)
class Numerics:
    dtype: str
    order: str
    weights: str
    batch: int
    replayed_by: str | None = None
    """Another order than the record's; None: the same."""

    def words(self) -> str:
        again = f", replayed by {self.replayed_by}" if self.replayed_by else ""
        return f"{self.dtype}, {self.order}, weights {self.weights}, batch {self.batch}{again}"


def numerics_cases() -> list[Numerics]:
    every = itertools.product(DTYPES, ORDERS, WEIGHTS, range(len(BATCHES)))
    cases = [Numerics(*numbers) for numbers in every]
    pairs = [(one, other) for one in ORDERS for other in ORDERS if one != other]
    return (
        cases
        + [
            Numerics(dtype, one, "as they are", index % len(BATCHES), other)
            for index, (dtype, (one, other)) in enumerate(itertools.product(DTYPES, pairs))
        ][:UPDATED]
    )


def numerics_figures(
    *, quick: bool = False, most_seconds: float = MOST_SECONDS, processes: int | None = None
) -> Iterator[dict[str, Any]]:
    chosen = numerics_cases()[:: 17 if quick else 1]
    done, wrong, kinds = 0, [], Counter[str]()
    verdicts = pooled(verdict_on, chosen, most_seconds, processes=1 if quick else processes)
    for case, verdict in zip(chosen, verdicts, strict=False):
        done += 1
        kinds[str(verdict.kind)] += 1
        if verdict.kind in DEFECTS:
            wrong.append(f"{case.words()}: {verdict.sentence}")
    name = f"faults.defects among {done} cases of rounding only{stopped(done, len(chosen), most_seconds)}"
    yield {**figure(name, len(wrong), "cases", 0), "verdicts": dict(kinds), "wrong": wrong}


def verdict_on(case: Numerics) -> Verdict:
    """A finding pinned on the first sequence of a late step, investigated as an incident is."""
    model, settings = model_of(case.dtype, case.weights), BATCHES[case.batch]
    before = torch.get_num_threads()
    torch.set_num_threads(settings["threads"])
    try:
        engine, captures = record_run(model, requests(), at_step(AT), order(case.order), settings)
        capture, environment = captures[0], dict(engine.environment())
        if case.replayed_by:
            environment |= {"faults": [{"name": fault.name} for fault in order(case.replayed_by)]}
        executor = EmbeddedExecutor.over(model, environment)
        changed = ["the attention kernel's library"] if case.replayed_by else []
        found = investigate(with_finding(capture), executor, None, judge=Judge(executor, changed=changed))
    finally:
        torch.set_num_threads(before)
    assert found.verdict is not None
    return found.verdict


def order(name: str) -> list[Fault]:
    return [HEALTHY[name]()] if name in HEALTHY else []


def with_finding(capture: Capture) -> Capture:
    name = capture.window.starts[min(capture.involved)].name
    finding = Finding("language.switch", name, Severity.WARNING, capture.window.last_step, 0, "benchmark")
    return replace(capture, findings=(finding,))


def at_step(number: int) -> Callable[[StepRecord], tuple[list[int], int] | None]:
    def wanted(record: StepRecord) -> tuple[list[int], int] | None:
        handles = record.sampling_handles.tolist() if record.step == number else []
        return (handles[:1], number - WINDOW + 1) if handles else None

    return wanted


def requests() -> list[GenerationRequest]:
    return [
        GenerationRequest(
            f"r{number}",
            [(13 * number + 7 * position) % 150 for position in range(9 + 11 * number)],
            SamplingParameters(temperature=0.8 * (number % 2), seed=number, max_tokens=10),
        )
        for number in range(4)
    ]


@cache
def model_of(dtype: str, weights: str) -> Any:
    model = tiny_model(dtype=dtype)
    if weights in QUANTISED:
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data = QUANTISED[weights](module.weight.data.float()).to(module.weight.dtype)
    return model


def rounded(weights: torch.Tensor, most: int) -> torch.Tensor:
    """To integers of at most `most`, with a scale for each last-but-one row."""
    scale = weights.abs().amax(-1, keepdim=True).clamp(min=1e-8) / most
    return (weights / scale).round() * scale


def int4(weights: torch.Tensor) -> torch.Tensor:
    groups = weights.reshape(*weights.shape[:-1], -1, GROUP)
    return rounded(groups, 7).reshape(weights.shape)


QUANTISED: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int8": lambda weights: rounded(weights, 127),
    "int4": int4,
}
"""Weight-only, simulated: the numbers that a quantised model's products are made of."""
