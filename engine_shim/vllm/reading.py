"""Raw logits of a vLLM step: where they are, whose they are, and their statistics. Nothing here waits for a device.

Two model runners: V1 leaves the logits in `execute_model_state` between `execute_model` and `sample_tokens`, in front
of the grammar's mask; V2 computes them inside `sample_tokens`, so there the model's `compute_logits` is watched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors.logits.pending import DeviceRowStats
from checkengine.detectors.logits.rows import pending_row_stats, row_stats
from checkengine.detectors.logits.stats import Level, RowStats
from checkengine.engine_shim.shim import FULL_ROWS
from checkengine.engine_shim.vllm.carried import StepReading

Ints = NDArray[np.int32]


class PendingReading:
    """Statistics that may still be on their way from the device; `collect` is called when the tokens are here."""

    __slots__ = ("_of", "_requests", "_stats")

    def __init__(self, requests: tuple[str, ...], of: Ints, stats: RowStats | DeviceRowStats) -> None:
        self._requests, self._of, self._stats = requests, of, stats

    def collect(self) -> StepReading:
        stats = self._stats
        return StepReading(self._requests, self._of, stats if isinstance(stats, RowStats) else stats.collect())


def read(logits: torch.Tensor, requests: tuple[str, ...], of: Ints, level: Level | None) -> PendingReading:
    """Logits of shape (rows, vocabulary); `of` has shape (rows,). Level None chooses by the number of rows.

    Raises ValueError where rows and requests do not fit: better no statistics than another request's.
    """
    if len(logits) != len(of):
        raise ValueError(f"{len(logits)} rows of logits for {len(of)} expected ones of {len(requests)} requests")
    chosen: Level = level or ("full" if len(logits) <= FULL_ROWS else "screen")
    measure = row_stats if logits.device.type == "cpu" else pending_row_stats
    return PendingReading(requests, of, measure(logits, chosen))


def read_v1(runner: Any, level: Level | None) -> PendingReading | None:
    """After `execute_model` returned None. None on ranks and steps without logits."""
    state = runner.execute_model_state
    logits = getattr(state, "logits", None)
    if logits is None or not len(logits):
        return None
    requests = tuple(runner.input_batch.req_ids)
    return read(logits, requests, rows_v1(len(requests), state.spec_decode_metadata), level)


def rows_v1(requests: int, metadata: Any) -> Ints:
    """Which request each row of logits belongs to: one a request, or one more than it has draft tokens."""
    if metadata is None:
        return np.arange(requests, dtype=np.int32)
    counts = np.asarray(metadata.num_draft_tokens, np.int32) + 1
    return np.repeat(np.arange(requests, dtype=np.int32), counts)


def rows_v2(batch: Any) -> Ints:
    """The same of a V2 `InputBatch`, from its host arrays."""
    requests = int(batch.num_reqs)
    counts = np.diff(np.asarray(batch.cu_num_logits_np[: requests + 1]))
    return np.repeat(np.arange(requests, dtype=np.int32), counts)


class ComputeLogitsWatch:
    """Stands in front of a model's `compute_logits`; hands the logits on that are computed while it is armed.

    Warm-ups, dummy runs and prompt logprobs compute logits too: they happen outside of `sample_tokens`, or after the
    first call in it.
    """

    def __init__(self, model: Any, seen: Callable[[torch.Tensor], None]) -> None:
        self.armed = False
        self._compute = model.compute_logits
        self._seen = seen
        model.compute_logits = self

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        logits = self._compute(*arguments, **keywords)
        if self.armed and logits is not None:
            self.armed = False
            self._seen(logits)
        return logits
