"""Does the judge tell what comes again, what lives on in memory and what came once? Seeded cases of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.pooled import pooled, stopped
from checkengine.engine_shim.engine.batch import PackedBatch
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.kv_memory import KVMemory
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import Fault
from checkengine.engine_shim.faults.fault import Ints, last_tokens
from checkengine.engine_shim.faults.memory import slots_of
from checkengine.engine_shim.faults.over_read import OverRead, OverReadKeys, OverReadValues
from checkengine.engine_shim.faults.wrong_page import NeighboursPage, StaleTable
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.investigate import investigate
from checkengine.replay.judge.fault_class import FaultClass, Persistence
from checkengine.replay.record import StepRecord
from checkengine.selftest_cases import BLOCK
from checkengine.selftest_recording import record_run
from checkengine.tiny import tiny_model

CASES, QUICK_CASES = 1000, 24
MOST_SECONDS = 600.0
EARLIEST, LATEST = 9, 15
"""Steps in which something may happen; every sequence decodes by then."""


@dataclass(slots=True)
class FlippedBit(Fault):
    """Once, in one step of the live engine, one number of a row's attention output comes out with a bit flipped."""

    step: int
    row: int
    bit: int
    name = "flipped_bit"
    models = "bits flipped in a core or in flight: Hochschild et al., Cores that don't count, HotOS 2021"
    fault_class = FaultClass.ARITHMETIC
    in_code = False
    now: int = -1

    def strikes(self, batch: PackedBatch, memory: KVMemory) -> None:
        self.now = batch.step

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        if self.now != self.step or layer:
            return
        token = int(last_tokens(query_lengths)[self.row % len(query_lengths)])
        words = output[token].view(torch.int32)
        words.view(-1)[self.bit % words.numel()] ^= 1 << (18 + self.bit % 8)


@dataclass(slots=True)
class StruckMemory(Fault):
    """Before one step, a slot that a row goes on to read holds something else: finite, or NaN."""

    step: int
    row: int
    share: float
    """Where in the row, of what it had in memory before the step."""
    nan: bool
    name = "struck_memory"
    models = "a late write into a page that is another's by then: sgl-project/sglang#24527"
    fault_class = FaultClass.STALE_KV
    in_code = False

    def strikes(self, batch: PackedBatch, memory: KVMemory) -> None:
        if batch.step == self.step:
            row = self.row % len(batch.handles)
            position = int(self.share * max(0, int(batch.starts[row]) - 1))
            memory.write_slots(slots_of(batch, row, range(position, position + 1)), float("nan") if self.nan else 3.0)


@dataclass(frozen=True, slots=True)
class Seeded:
    wanted: Persistence
    fault: Fault
    step: int
    row: int


def seeded_case(seed: int) -> Seeded:
    random = np.random.default_rng(seed)
    step, row = int(random.integers(EARLIEST, LATEST)), int(random.integers(4))
    wanted = list(Persistence)[seed % len(Persistence)]
    if wanted is Persistence.TRANSIENT:
        return Seeded(wanted, FlippedBit(step, row, int(random.integers(64))), step, row)
    if wanted is Persistence.PERSISTENT:
        fault = StruckMemory(step - 1, row, float(random.random()), bool(random.random() < 0.5))
        return Seeded(wanted, fault, step, row)
    return Seeded(wanted, IN_CODE[int(random.integers(len(IN_CODE)))](int(random.integers(3))), step, row)


IN_CODE: tuple[Callable[[int], Fault], ...] = (
    lambda layer: OverRead(block_size=BLOCK, layers=(layer,)),
    lambda layer: OverReadKeys(block_size=BLOCK, layers=(layer,)),
    lambda layer: OverReadValues(block_size=BLOCK, layers=(layer,)),
    lambda layer: StaleTable(block_size=BLOCK, layers=(layer,)),
    lambda layer: NeighboursPage(block_size=BLOCK, layers=(layer,)),
)


def persistence_figures(
    *, quick: bool = False, most_seconds: float = MOST_SECONDS, processes: int | None = None
) -> Iterator[dict[str, Any]]:
    cases = QUICK_CASES if quick else CASES
    done, right, confused = 0, 0, Counter[str]()
    for wanted, told in pooled(judge_seed, range(cases), most_seconds, processes=1 if quick else processes):
        done += 1
        right += told == wanted
        confused[f"{wanted} told as {told}"] += told != wanted
    name = f"faults.persistence told right, {done:,} seeded cases{stopped(done, cases, most_seconds)}"
    share = figure(name, round(100 * right / max(1, done), 2), "%", 99.0, at_least=True)
    yield {**share, "confused": {key: count for key, count in confused.items() if count}}


def judge_seed(seed: int) -> tuple[Persistence, Persistence | None]:
    return judge_seeded(seeded_case(seed))


def judge_seeded(case: Seeded) -> tuple[Persistence, Persistence | None]:
    """What it is, and what the judge says."""

    def wanted(record: StepRecord) -> tuple[list[int], int] | None:
        # All rows: what came once is told from what rows do to each other only where every row can run as it was.
        return (record.handles.tolist(), case.step - 5) if record.step == case.step else None

    engine, captures = record_run(model(), requests(), wanted, [case.fault])
    capture = captures[0]
    name = capture.window.starts[int(_handle(capture, case))].name
    finding = Finding("selftest.planted", name, Severity.WARNING, case.step, 0, "benchmark")
    executor = EmbeddedExecutor.over(engine.model, engine.environment())
    one = replace(capture, involved=frozenset({_handle(capture, case)}), findings=(finding,))
    verdict = investigate(one, executor, None).verdict
    return case.wanted, verdict.persistence if verdict else None


def _handle(capture: Any, case: Seeded) -> int:
    handles = capture.window.records[-1].handles
    return int(handles[case.row % len(handles)])


@cache
def model() -> Any:
    return tiny_model()


def requests() -> list[GenerationRequest]:
    """Long enough that each has more than two pages when something happens."""
    return [
        GenerationRequest(
            f"r{number}",
            [(13 * number + 7 * position) % 150 for position in range(20 + 3 * number)],
            SamplingParameters(temperature=0.9, seed=number, max_tokens=18),
        )
        for number in range(4)
    ]
