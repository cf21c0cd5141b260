"""A step without some of its rows: another shape, and so, in healthy code too, other bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from checkengine.replay.executor import ReplayStep
from checkengine.replay.window import WindowStep


def step_of_rows(step: WindowStep, rows: NDArray[np.int64]) -> WindowStep:
    """The step with these rows only, in their order in the batch; `rows` is sorted."""
    return replace(step, replay=replay_of_rows(step.replay, rows), involved=step.involved[rows])


def replay_of_rows(replay: ReplayStep, rows: NDArray[np.int64]) -> ReplayStep:
    record = replay.record
    chosen = np.zeros(len(record.handles), np.bool_)
    chosen[rows] = True
    sampling = chosen[record.samples]
    smaller = replace(
        record,
        handles=record.handles[rows],
        query_lengths=record.query_lengths[rows],
        starts=record.starts[rows],
        samples=record.samples[rows],
        token_ids=record.token_ids[np.repeat(chosen, record.query_lengths)],
        fingerprints=record.fingerprints[sampling] if len(record.fingerprints) else record.fingerprints,
        sampled=record.sampled[sampling] if len(record.sampled) else record.sampled,
    )
    handles = set(smaller.handles.tolist())
    return replace(
        replay,
        record=smaller,
        block_tables=[replay.block_tables[row] for row in rows.tolist()],
        starts={handle: start for handle, start in replay.starts.items() if handle in handles},
        outputs={handle: tokens for handle, tokens in replay.outputs.items() if handle in handles},
    )
