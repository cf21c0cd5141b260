"""An engine that is recorded and not watched: for corpora that need windows by the hundred and no guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors.logits import row_stats
from checkengine.engine_shim.capturing import take_capture
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.request import GenerationRequest
from checkengine.engine_shim.faults import Fault
from checkengine.engine_shim.settings import EngineSettings
from checkengine.replay.capture import Capture
from checkengine.replay.record import StepRecord
from checkengine.replay.recorder import Recorder
from checkengine.replay.undo import UndoRing
from checkengine.selftest_cases import BLOCK

Wanted = Callable[[StepRecord], tuple[list[int], int] | None]
"""Which handles of a step are captured, and from which step on; None for none."""


class RecordingShim:
    """Records every step with fingerprints and takes the captures that are wanted."""

    def __init__(self, wanted: Wanted) -> None:
        self.recorder = Recorder(512, 4 << 20)
        self.captures: list[Capture] = []
        self.engine: Engine | None = None
        self._wanted = wanted

    @contextmanager
    def step(self, record: StepRecord) -> Iterator[RecordingShim]:
        self._record = record
        self._prints: NDArray[np.uint64] | None = None
        self.recorder.begin(record)
        yield self

    def logits(self, logits: torch.Tensor) -> None:
        self._prints = row_stats(logits, "full").fingerprint if len(logits) else None

    def tokens(self, tokens: NDArray[Any]) -> list[Any]:
        self.recorder.finish(self._record.step, self._prints, tokens)
        if (chosen := self._wanted(self._record)) is not None and self.engine is not None:
            handles, first = chosen
            capture = take_capture(self.engine, self.recorder, handles, first_step=max(0, first))
            self.captures.append(capture)
        return []


def record_run(
    model: Any,
    requests: Sequence[GenerationRequest],
    wanted: Wanted,
    faults: Sequence[Fault] = (),
    engine_settings: Mapping[str, Any] | None = None,
) -> tuple[Engine, list[Capture]]:
    """Serve all requests to their end."""
    options = {"block_size": BLOCK, "blocks": 48, "tokens_per_step": 40, "threads": 1, **(engine_settings or {})}
    shim = RecordingShim(wanted)
    engine = Engine(model, None, EngineSettings(**options), shim, UndoRing(64, 64 << 20), faults)
    shim.engine = engine
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    return engine, shim.captures
