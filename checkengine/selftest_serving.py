"""Serve a tiny model with a planted fault, and keep what is needed to judge it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.engine_shim.capturing import take_capture
from checkengine.engine_shim.engine.request import GenerationRequest
from checkengine.engine_shim.faults import Fault
from checkengine.engine_shim.settings import EngineSettings
from checkengine.guards.action import Action
from checkengine.guards.finding import Finding
from checkengine.guards.settings import LogitsSettings
from checkengine.replay.capture import Capture
from checkengine.replay.record import StepRecord
from checkengine.replay.settings import AuditSettings, CaptureSettings, SpoolSettings
from checkengine.selftest_cases import BLOCK

Wanted = Callable[[StepRecord], tuple[list[int], int] | None]
"""Which handles of a step are captured, and from which step on; None for none."""


class Seen:
    """A step listener: findings, tokens of the first row, and the captures that are wanted."""

    def __init__(self, engine: Any, shim: Any, wanted: Wanted) -> None:
        self.findings: list[Finding] = []
        self.captures: list[Capture] = []
        self.tokens: list[int] = []
        self.engine = engine
        self._recorder = shim.assembly.recorder
        self._wanted = wanted

    def step_done(self, record: StepRecord, findings: list[Finding], actions: list[Action]) -> None:
        self.findings += findings
        self.tokens.append(int(record.sampled[0]) if len(record.sampled) else -1)
        if (chosen := self._wanted(record)) is not None:
            handles, first = chosen
            self.captures.append(take_capture(self.engine, self._recorder, handles, first_step=max(0, first)))


def every_row(record: StepRecord) -> tuple[list[int], int]:
    """Each step by itself, all its rows."""
    return record.handles.tolist(), record.step


def run(
    model: Any,
    tokenizer: Any,
    requests: Sequence[GenerationRequest],
    faults: Sequence[Fault] = (),
    wanted: Wanted = every_row,
    engine_settings: Mapping[str, Any] | None = None,
    *,
    dirty: bool = False,
) -> Seen:
    """Serve all requests to their end. `dirty`: memory begins as NaN."""
    options = {"block_size": BLOCK, "blocks": 64, "tokens_per_step": 40, "threads": 1, **(engine_settings or {})}
    settings = Settings(
        engine=EngineSettings(**options),
        logits=LogitsSettings(level="full"),
        audit=AuditSettings(enabled=False),
        capture=CaptureSettings(enabled=False),
        spool=SpoolSettings(enabled=False),
    )
    engine, shim = embed(model, tokenizer, settings, faults)
    assert shim is not None
    if dirty:
        for tensor in engine.memory.tensors.values():
            tensor.fill_(math.nan)
    seen = Seen(engine, shim, wanted)
    shim.parts.listeners.append(seen)
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    shim.close()
    return seen
