"""What a step did, in numbers for counters."""

from __future__ import annotations

import numpy as np

from checkengine.guards.events import StepMeasured
from checkengine.replay.record import StepRecord


def measured(record: StepRecord, seconds: float, guard_cpu_seconds: float, now: float) -> StepMeasured:
    """Takes a few microseconds. Slots that attention reads are counted once a row, whatever its chunks."""
    lengths = record.query_lengths
    return StepMeasured(
        record.step,
        len(record.handles),
        len(record.token_ids),
        seconds,
        guard_cpu_seconds,
        now,
        context_tokens=int(np.sum(record.starts, dtype=np.int64) + np.sum(lengths, dtype=np.int64)),
        prefill_tokens=int(np.sum(lengths[lengths > 1], dtype=np.int64)),
    )
