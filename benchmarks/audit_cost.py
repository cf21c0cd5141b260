"""What one audit costs on the demo model, and how fast the engine steps beside it: measured, for the simulation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.engine_shim.engine.load import load_model
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.settings import LogitsSettings
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings

MODEL = "smollm2-135m"
ROWS, PROMPT = 16, 256


@dataclass(frozen=True, slots=True)
class Cost:
    audits: int
    cpu_seconds: float
    """Of one audit, capture included."""
    seconds_per_step: float
    """Of decoding steps: median."""
    convicted: int


def measure_cost(audits: int = 12, *, every_steps: int = 6, rows_per_audit: int = 2) -> Cost:
    """Serve 16 rows of about 300 tokens; recorded logits are screened, as they are at 16 rows by default."""
    model, tokenizer = load_model(model_directory(MODEL))
    engine, shim = embed(model, tokenizer, settings_of(every_steps, rows_per_audit))
    assert shim is not None
    random = np.random.default_rng(0)
    for number in range(ROWS):
        tokens = random.integers(0, 40_000, PROMPT + 4 * number).tolist()
        sampling = SamplingParameters(temperature=0.7, seed=number, max_tokens=400, ignore_eos=True)
        engine.submit(GenerationRequest(f"r{number}", tokens, sampling))
    steps = run(engine, shim, audits)
    status = shim.assembly.audits.status() if shim.assembly.audits is not None else {}
    shim.close()
    judged = max(1, int(status["judged"]))
    return Cost(judged, status["cpu_seconds"] / judged, float(np.median(steps)), len(status["convictions"]))


def run(engine: Any, shim: Any, audits: int) -> list[float]:
    """CPU seconds of decoding steps in one thread: as long as they take on a machine of their own, whatever else runs
    here."""
    while any(sequence.pending > 1 for sequence in engine.scheduler.running) or engine.scheduler.waiting:
        engine.step()
    spent = []
    while engine.has_work and shim.assembly.audits.judged < audits:
        before = time.thread_time()
        engine.step()
        spent.append(time.thread_time() - before)
    return spent


def settings_of(every_steps: int, rows_per_audit: int) -> Settings:
    return Settings(
        engine=EngineSettings(maximum_sequences=ROWS, threads=1, prefix_cache=False),
        logits=LogitsSettings(level="auto"),
        audit=AuditSettings(every_steps=every_steps, rows=rows_per_audit),
        capture=CaptureSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
    )
