"""A step of sixteen sequences of the demo model with a planted over-read: replayed, judged, localised."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from checkengine.assemble import embed
from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.replay import DEMO, DemoPrompts, settings_of
from checkengine.engine_shim.capturing import take_capture
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.load import load_model
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.faults import Fault, OverRead
from checkengine.engine_shim.models import model_directory
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.capture import Capture
from checkengine.replay.investigate import Investigation, investigate
from checkengine.replay.judge.gate import Gate
from checkengine.replay.judge.verdict import VerdictKind

MODEL = "smollm2-135m"
SEQUENCES = 16
STEPS = 8
"""Of the window."""
SECONDS = 60.0


def step_figures(path: Path | None = None) -> list[dict[str, Any]]:
    capture, environment, model = captured(path, [OverRead(block_size=DEMO.block_size)])
    executor = EmbeddedExecutor.over(model, environment)
    started = time.monotonic()
    found = investigate(capture, executor, None)
    seconds = time.monotonic() - started
    started = time.monotonic()
    gated = investigate(capture, executor, None, gate=Gate(environment))
    with_gate = time.monotonic() - started
    healthy_capture, environment, model = captured(path, [])
    started = time.monotonic()
    healthy = investigate(healthy_capture, EmbeddedExecutor.over(model, environment), None)
    return [
        figure("judge.step, over-read convicted and localised", int(is_over_read(found)), "", 1, at_least=True),
        figure(f"judge.step.seconds, {SEQUENCES} sequences, {STEPS} steps", round(seconds, 2), "s", SECONDS),
        figure("judge.step.seconds with 20 runs in 3 fresh processes", round(with_gate, 2), "s", SECONDS),
        figure("judge.step.gate passed", int(gate_passed(gated)), "", 1, at_least=True),
        figure("judge.step.seconds, nothing wrong", round(time.monotonic() - started, 2), "s", SECONDS),
        figure("judge.step.false convictions", int(convicted(healthy)), "", 0),
    ]


def captured(path: Path | None, faults: list[Fault]) -> tuple[Capture, dict[str, Any], Any]:
    """The last STEPS steps once all sequences decode, with a finding on one of them."""
    model, tokenizer = load_model(path or model_directory(MODEL))
    load = type(DEMO)(**{**_fields(DEMO), "blocks": 160, "rows": SEQUENCES, "tokens_per_step": 256})
    engine, shim = embed(model, tokenizer, settings_of(load), faults=faults)
    assert shim is not None
    recorder = shim.assembly.recorder
    assert recorder is not None
    prompts, random = DemoPrompts(tokenizer), np.random.default_rng(0)
    for number in range(SEQUENCES):
        engine.submit(GenerationRequest(f"r{number}", prompts(random), SamplingParameters(temperature=0.0)))
    while len(recorder.window().records) < STEPS or len(recorder.window().records[-STEPS].sampled) < SEQUENCES:
        engine.step()
    step = recorder.window().last_step
    starts = recorder.window().starts
    handles = [handle for handle, start in starts.items() if start.name == "r3"]
    finding = Finding("bench.planted", "r3", Severity.WARNING, step, 0, "benchmark")
    capture = take_capture(engine, recorder, handles, first_step=step - STEPS + 1, findings=(finding,))
    environment = dict(engine.environment())
    shim.close()
    return capture, environment, model


def _fields(load: Any) -> dict[str, Any]:
    return {name: getattr(load, name) for name in load.__dataclass_fields__}


def convicted(found: Investigation) -> bool:
    return found.verdict is None or found.verdict.kind not in (VerdictKind.INCONCLUSIVE, VerdictKind.BATCH_NUMERICS)


def is_over_read(found: Investigation) -> bool:
    verdict = found.verdict
    return verdict is not None and verdict.fault_class == "over-read" and len(verdict.slots) == 1


def gate_passed(found: Investigation) -> bool:
    tests = found.verdict.tests if found.verdict else ()
    return any(test.name == "gate" and test.passed is True for test in tests)
