"""What one audit costs on the demo model, and how long a step takes: measured, for the simulation of a fleet.

CPU time of one thread: as long as it takes on a machine of its own, whatever else runs here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.engine_shim.auditing import prints_of
from checkengine.engine_shim.capturing import take_capture
from checkengine.engine_shim.engine.executor import EmbeddedExecutor
from checkengine.engine_shim.engine.load import load_model
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.models import model_directory
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.action import Action
from checkengine.guards.finding import Finding
from checkengine.replay.audit import Auditor
from checkengine.replay.capture import Capture
from checkengine.replay.judge.verdict import VerdictKind
from checkengine.replay.record import StepRecord
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings

MODEL = "smollm2-135m"
ROWS, PROMPT, CHUNK = 16, 256, 256


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds that grow with the tokens of a step."""

    base: float
    per_token: float

    def at(self, tokens: int) -> float:
        return self.base + self.per_token * tokens

    @classmethod
    def through(cls, few: tuple[float, float], many: tuple[float, float]) -> Line:
        """Two points of (tokens, seconds)."""
        slope = max(0.0, (many[1] - few[1]) / (many[0] - few[0]))
        return cls(few[1] - slope * few[0], slope)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of 16 rows of about 300 tokens, two of them audited."""

    step: Line
    audit: Line
    """Capture on the step's thread and screen, of rows that sample; a chunk that does not sample takes two runs."""
    audits: int
    convicted: int


class Asked:
    """A step listener: captures what it is asked for, as the audit does."""

    def __init__(self, engine: Any, recorder: Any, rows: int) -> None:
        self._engine, self._recorder, self._rows = engine, recorder, rows
        self._logits: torch.Tensor | None = None
        self.wanted = False
        self.taken: list[tuple[Capture, dict[int, int], float]] = []

    def take_logits(self, logits: torch.Tensor | None) -> None:
        self._logits = logits

    def step_done(self, record: StepRecord, findings: list[Finding], actions: list[Action]) -> None:
        if not self.wanted or not len(record.sampling_handles):
            return
        before = time.thread_time()
        handles = record.sampling_handles[-self._rows :].tolist()
        capture = take_capture(self._engine, self._recorder, handles, first_step=record.step)
        prints = prints_of(record, self._logits, handles)
        self.taken.append((capture, prints, time.thread_time() - before))
        self.wanted = False


def measure_costs(audits: int = 6, rows_per_audit: int = 2) -> Costs:
    """About half a minute."""
    torch.set_num_threads(1)
    model, tokenizer = load_model(model_directory(MODEL))
    engine, shim = embed(model, tokenizer, settings_of())
    assert shim is not None
    asked = Asked(engine, shim.assembly.recorder, rows_per_audit)
    shim.parts.listeners.append(asked)
    auditor = Auditor(EmbeddedExecutor.over(model, engine.environment()), seed=0)
    prompts = requests(ROWS + audits + 1)
    for _ in range(ROWS):
        engine.submit(next(prompts))
    prefill = [measured(engine, asked, auditor, lambda: engine.submit(next(prompts))) for _ in range(audits // 2)]
    while engine.scheduler.waiting or any(sequence.pending > 1 for sequence in engine.scheduler.running):
        engine.step()
    decode = [measured(engine, asked, auditor, lambda: None) for _ in range(audits)]
    shim.close()
    few, many = (np.median(np.array([each[:3] for each in part]), 0) for part in (decode, prefill))
    convicted = sum(each[3] is not VerdictKind.NO_FAULT for each in (*decode, *prefill))
    step, audit = (Line.through((few[0], few[i]), (many[0], many[i])) for i in (1, 2))
    return Costs(step, audit, len(decode) + len(prefill), convicted)


def measured(
    engine: Any, asked: Asked, auditor: Auditor, before_step: Callable[[], None]
) -> tuple[int, float, float, VerdictKind]:
    """Tokens of the next step with rows that sample, its seconds, its audit's, and the verdict."""
    before_step()
    asked.wanted = True
    while asked.wanted:
        began = time.thread_time()
        engine.step()
        stepped = time.thread_time() - began
    capture, prints, captured = asked.taken.pop()
    began = time.thread_time()
    verdict = auditor.audit(capture, prints)
    tokens = len(capture.window.records[-1].token_ids)
    return tokens, stepped - captured, time.thread_time() - began + captured, verdict.kind


def requests(count: int) -> Any:
    random = np.random.default_rng(0)
    for number in range(count):
        tokens: Sequence[int] = random.integers(0, 40_000, PROMPT + 4 * number).tolist()
        sampling = SamplingParameters(temperature=0.7, seed=number, max_tokens=400, ignore_eos=True)
        yield GenerationRequest(f"r{number}", list(tokens), sampling)


def settings_of() -> Settings:
    return Settings(
        engine=EngineSettings(maximum_sequences=ROWS, tokens_per_step=CHUNK, threads=1, prefix_cache=False),
        audit=AuditSettings(enabled=False),
        capture=CaptureSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
    )
