"""How small does a convicted batch become, in how many replays, and does it survive without content?

A tiny random model stands in for a real one: what is shrunk is the call of an attention kernel, whatever the weights.
"""

from __future__ import annotations

import inspect
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.figure import figure
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import FAULTS, FaultClass, OverRead, describe_fault
from checkengine.engine_shim.faults.blind import BLIND_FAULTS
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.bundle import BundleReader
from checkengine.replay.capture import Capture
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.minimise.convict import CONVICTIONS, convict
from checkengine.replay.minimise.investigate_call import investigate_call
from checkengine.replay.minimise.minimise import BUDGET, Minimised, minimise
from checkengine.replay.minimise.reproducer import write_reproducer
from checkengine.replay.record import StepRecord
from checkengine.selftest_cases import FAMILIES, Case, case_of
from checkengine.selftest_judging import acting
from checkengine.selftest_serving import run
from checkengine.tiny import tiny_model, tiny_tokenizer

STATE = "CHECKENGINE_STATE"
SEQUENCES, TOKENS, PAGE = 64, 2048, 16
WARM_TOKENS = 3
LONG = 1000
MOST_BYTES = 64 << 10
CANARIES = 10_000
CANARY_BYTES = 8
"""Two numbers of four bytes."""
INDEX_CLASSES = (
    FaultClass.OVER_READ,
    FaultClass.UNDER_READ,
    FaultClass.WRONG_PAGE,
    FaultClass.FOREIGN_PAGE,
    FaultClass.WINDOW_EDGE,
    FaultClass.MASKED_READ,
)
PLACES = ((0, 8), (1, 16), (2, 8))
"""(layer, block size) of each run of a fault that can be told them."""
ROWS = 2
"""Struck rows of a run, of unlike lengths."""


def minimise_figures() -> Iterator[dict[str, Any]]:
    """Minutes: most of them serve 64 sequences of 2,048 tokens."""
    with tempfile.TemporaryDirectory(prefix="checkengine-") as folder, own_state(folder):
        yield from batch_figures(Path(folder))
        yield from survival_figures(Path(folder))


@contextmanager
def own_state(folder: str) -> Iterator[None]:
    """Keys and the access log of this run only."""
    before = os.environ.get(STATE)
    os.environ[STATE] = str(Path(folder) / "state")
    try:
        yield
    finally:
        if before is None:
            del os.environ[STATE]
        else:
            os.environ[STATE] = before


def batch_figures(folder: Path) -> list[dict[str, Any]]:
    """64 sequences of 2,048 tokens and a little more, one of them suspect."""
    capture, executor = full_batch()
    verdict = convict(capture, executor)
    began = time.monotonic()
    found = minimise(capture, executor, verdict)
    seconds = time.monotonic() - began
    again = minimise(capture, executor, verdict)
    path = write_reproducer(found, capture, executor, folder, content_free=True)
    size = found.size()
    judged = judging_seconds(path)
    name = f"minimise, {SEQUENCES} x {TOKENS} tokens"
    return [
        figure(f"{name}: rows before", len(capture.window.records[-1].handles), "sequences", SEQUENCES, at_least=True),
        figure(f"{name}: rows left", size["rows"], "sequences", 1),
        figure(f"{name}: tokens left", size["tokens"], "tokens", PAGE + 1),
        figure(f"{name}: layers left", size["layers"], "layers", 1),
        figure(f"{name}: heads left", size.get("heads", 0), "heads", 1),
        figure(f"{name}: replays", found.replays, "replays", BUDGET, peer=("judge's before", verdict.replays_used)),
        figure(f"{name}: 1-minimal", int(found.minimal), "of 1", 1, at_least=True),
        figure(f"{name}: differs when repeated", int(again.to_dict() != found.to_dict()), "of 1", 0),
        figure(f"{name}: time", seconds, "s", 60.0),
        figure(f"{name}: bundle", size_of(path), "bytes", MOST_BYTES),
        figure(f"{name}: judging it", judged, "s", 5.0),
        *conditional_figures(capture, executor, name),
    ]


def conditional_figures(capture: Capture, executor: EmbeddedExecutor, name: str) -> list[dict[str, Any]]:
    """The same batch, with a fault that strikes long rows only: no fewer tokens can show it."""
    faults = [describe_fault(OverRead(minimum_length=LONG, block_size=PAGE))]
    executor = EmbeddedExecutor.over(executor._model, {**capture.environment, "faults": faults})
    found = minimise(capture, executor, convict(capture, executor))
    struck = f"{name}, struck from {LONG} tokens on"
    return [
        figure(f"{struck}: tokens left", found.size()["tokens"], "tokens", LONG),
        figure(f"{struck}: replays", found.replays, "replays", BUDGET),
    ]


def long_model() -> Any:
    """The tiny model with room for the sequences."""
    from transformers import LlamaForCausalLM

    config = tiny_model().config
    config.max_position_embeddings = 2 * TOKENS
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def full_batch() -> tuple[Capture, EmbeddedExecutor]:
    model = long_model()
    random = np.random.default_rng(0)
    requests = [
        GenerationRequest(
            f"r{number}",
            random.integers(3, 150, TOKENS - 1 + int(random.integers(0, PAGE))).tolist(),
            SamplingParameters(temperature=1.0, seed=number, max_tokens=WARM_TOKENS + SEQUENCES // 8, ignore_eos=True),
        )
        for number in range(SEQUENCES)
    ]
    settings = {
        "block_size": PAGE,
        "blocks": (SEQUENCES + 1) * (TOKENS // PAGE + 3),
        "tokens_per_step": 8 * TOKENS,
        "maximum_sequences": SEQUENCES,
    }
    taken: list[int] = []

    def wanted(record: StepRecord) -> tuple[list[int], int] | None:
        if taken or len(record.handles) < SEQUENCES or (record.query_lengths != 1).any():
            return None
        taken.append(int(record.handles[SEQUENCES // 2]))
        return taken[:1], record.step

    seen = run(model, tiny_tokenizer(), requests, [OverRead(block_size=PAGE)], wanted, settings)
    executor = EmbeddedExecutor.over(model, seen.engine.environment())
    return with_finding(seen.captures[0], taken[0]), executor


def with_finding(capture: Capture, handle: int) -> Capture:
    """As if a guard had pointed at this sequence."""
    name = capture.window.starts[handle].name
    finding = Finding("language.switch", name, Severity.WARNING, capture.window.last_step, 0, "benchmark")
    return replace(capture, findings=(finding,))


def judging_seconds(path: Path) -> float:
    began = time.monotonic()
    if not investigate_call(BundleReader(path)).reproduced:
        return float("inf")
    return time.monotonic() - began


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@dataclass(slots=True)
class Survival:
    convicted: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)
    most_replays: int = 0
    largest: int = 0
    planted: int = 0
    found: int = 0
    rows: int = 0
    not_judged: list[str] = field(default_factory=list)


def survival_figures(folder: Path) -> list[dict[str, Any]]:
    """Every fault that is a slip of an index, on several layers, block sizes and lengths."""
    seen = Survival()
    models: dict[str, Any] = {}
    for case in index_cases():
        if case.family not in models:
            models[case.family] = tiny_model(case.family)
        survive(case, models[case.family], folder, seen)
    rate = seen.survived / max(1, seen.convicted)
    counted = {"convicted": seen.convicted, "survived": seen.survived, "lost": seen.lost}
    return [
        figure("minimise: content-free reproducers of index faults", rate, "of those convicted", 0.95, at_least=True)
        | counted
        | {"not_convicted": seen.not_judged},
        figure("minimise: one-row reproducers among them", seen.survived - seen.rows, "reproducers", 1, at_least=True),
        figure("minimise: most replays", seen.most_replays, "replays", BUDGET),
        figure("minimise: largest content-free bundle", seen.largest, "bytes", MOST_BYTES),
        figure("minimise: canaries planted", seen.planted, "canaries", CANARIES, at_least=True),
        figure("minimise: canaries found", seen.found, "canaries", 0),
    ]


def index_cases() -> Iterator[Case]:
    for name, fault in FAULTS.items():
        if fault.fault_class not in INDEX_CLASSES or not fault.in_code:
            continue
        known = inspect.signature(fault).parameters
        for layer, block_size in PLACES:
            told = {"layers": (layer,), "block_size": block_size}
            case = case_of(name, **{key: value for key, value in told.items() if key in known})
            yield replace(case, family=FAMILIES.get(name, "llama"), settings={"block_size": block_size})
    for name, fault in BLIND_FAULTS.items():
        if fault.fault_class in INDEX_CLASSES and fault.in_code:
            yield case_of(name)


def survive(case: Case, model: Any, folder: Path, seen: Survival) -> None:
    served = run(model, tiny_tokenizer(), case.requests, [case.fault], engine_settings=case.settings, dirty=case.dirty)
    executor = EmbeddedExecutor.over(model, served.engine.environment())
    convicted = 0
    for capture, handle in acting(case, served):
        suspect = with_finding(capture, handle)
        verdict = convict(suspect, executor)
        if verdict.kind not in CONVICTIONS or convicted == ROWS:
            continue
        convicted += 1
        tally(case, suspect, executor, minimise(suspect, executor, verdict), folder, seen)
    if not convicted:
        seen.not_judged.append(case.name)


def tally(
    case: Case, capture: Capture, executor: EmbeddedExecutor, found: Minimised, folder: Path, seen: Survival
) -> None:
    seen.convicted += 1
    seen.most_replays = max(seen.most_replays, found.replays)
    try:
        path = write_reproducer(found, replace(capture, incident=None), executor, folder, content_free=True)
    except CannotReplayError as error:
        seen.lost.append(f"{case.name}: {error}")
        return
    seen.survived += 1
    seen.rows += found.sequences > 1
    seen.largest = max(seen.largest, size_of(path))
    scan(capture, path, seen)


def scan(capture: Capture, path: Path, seen: Survival) -> None:
    """Every pair of numbers that stand side by side in the capture's tokens and KV, against all bytes written."""
    written = b"\n".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    windows = {written[i : i + CANARY_BYTES] for i in range(len(written) - CANARY_BYTES + 1)}
    tokens = [record.token_ids for record in capture.window.records]
    numbers = [tensor[torch.isfinite(tensor)].flatten().numpy() for tensor in capture.memory.tensors.values()]
    for array in (*tokens, *numbers):
        pairs = [array[i : i + 2] for i in range(len(array) - 1)]
        planted = [pair.tobytes() for pair in pairs if pair.all()]
        seen.planted += len(planted)
        seen.found += sum(canary in windows for canary in planted)
