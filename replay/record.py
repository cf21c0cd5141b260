"""A step record: everything that decides the numbers of one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.logits.stats import RowStats
from checkengine.guards.step import SequenceStart

Ints = NDArray[np.int32]


@dataclass(slots=True)
class BlockTables:
    """Block tables of all live sequences: row i has `counts[i]` entries of `blocks`, in order."""

    handles: Ints
    counts: Ints
    blocks: Ints
    """Flat, shape (counts.sum(),)."""


def no_blocks() -> Ints:
    return np.empty((0, 3), np.int32)


@dataclass(slots=True)
class StepRecord:
    """Rows are in the order of the packed batch. Tokens are packed: row i owns `query_lengths[i]` of them.

    Row i computes positions `starts[i] … starts[i] + query_lengths[i] - 1`; its KV slot at position p is
    `table[p // block_size] * block_size + p % block_size`.
    """

    step: int
    """Rises by one from record to record: a jump tells that records are missing."""
    time_ns: int
    handles: Ints
    """Shape (rows,): SequenceStart.handle."""
    query_lengths: Ints
    starts: Ints
    """Shape (rows,): tokens whose KV is already in memory (cached length)."""
    samples: NDArray[np.bool_]
    """Shape (rows,): True where the row yields logits in this step (a prefill chunk that is not the last does not)."""
    token_ids: Ints
    """Shape (query_lengths.sum(),): packed input tokens."""
    block_changes: Ints = field(default_factory=no_blocks)
    """Shape (n, 3): (handle, index in the table, block) set since the record before; block -1 cuts the table there."""
    tables: Callable[[], BlockTables] | None = None
    """All tables as of this step, `block_changes` applied; called at checkpoints only."""
    begun: tuple[SequenceStart, ...] = ()
    """Sequences seen for the first time in this step."""
    ended: tuple[int, ...] = ()
    """Handles that left since the record before."""
    kernel: str = "paged"
    """Name of the attention kernel; an engine's other choices are constant and live in the environment."""
    # The outcome, row-aligned with the rows whose `samples` is True; empty until the step is done.
    fingerprints: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    sampled: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    stats: RowStats | None = None
    """What the logits showed. It is there while the step is, and is never recorded."""

    @property
    def sampling_handles(self) -> Ints:
        return self.handles[self.samples]
