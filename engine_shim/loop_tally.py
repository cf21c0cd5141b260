"""Loops of a looped model's requests, counted while they are served and told when each is over."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from checkengine.detectors.recurrence import LoopNorms
from checkengine.detectors.recurrence_hook import last_rows
from checkengine.guards.events import LoopsMeasured
from checkengine.replay.record import StepRecord


@dataclass(slots=True)
class _Count:
    passes: int = 0
    loops: int = 0
    ratio: float = 0.0


class LoopTally:
    """One thread's. Keeps three numbers for each live sequence of a looped model, nothing for others."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def take(self, names: tuple[str, ...], norms: LoopNorms) -> None:
        """A forward pass; row i of the norms is `names[i]`'s."""
        ratios = norm_ratios(norms)
        for name, ratio in zip(names, ratios.tolist(), strict=False):
            count = self._counts.setdefault(name, _Count())
            count.passes += 1
            count.loops += len(norms.hidden)
            count.ratio = max(count.ratio, ratio)

    def end(self, name: str) -> LoopsMeasured | None:
        """None for a sequence without loops."""
        count = self._counts.pop(name, None)
        return None if count is None else LoopsMeasured(name, count.passes, count.loops, count.ratio, time.time())


def of_rows(norms: LoopNorms, record: StepRecord, rows: int) -> LoopNorms | None:
    """Of the last token of each row that samples; None where a pass of this shape says nothing of rows."""
    positions = norms.hidden.shape[1]
    if positions == len(record.token_ids):
        return norms.rows(last_rows(record.query_lengths)[record.samples])
    if positions % rows == 0 and rows:
        width = positions // rows
        return norms.rows(np.arange(rows, dtype=np.int64) * width + width - 1)
    return None


def norm_ratios(norms: LoopNorms) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of each row, the state's norm after the last loop over that before it; infinite where either overflowed."""
    before, after = (norms.hidden[place].astype(np.float64) for place in (-2, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = after / before
    return np.where(np.isfinite(ratios), ratios, np.inf)
