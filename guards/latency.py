"""Time to first token and between tokens against the service's objective. Off until a limit is configured."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.latency import BurstLimits, LateBursts
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.rows import NO_FINDINGS
from checkengine.guards.settings import LatencySettings
from checkengine.guards.step import SequenceStart, StepView

KIND = "latency.slo"


class LatencyGuard:
    """Between tokens: a burst within one sequence. First tokens: a burst of sequences one after another, told on the
    last of them. Times are those at which steps begin, so a wait is told one step late. A sequence is told once."""

    name: str = "latency"
    version: int = 1
    needs_stats: bool = False

    def __init__(self, settings: LatencySettings) -> None:
        self._ttft, self._tbt = _bursts(settings.ttft_seconds, settings), _bursts(settings.tbt_seconds, settings)
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._last: NDArray[np.float64] = np.full(64, np.nan)
        """When a slot's sequence had its last token; NaN before its first."""
        self._arrived: dict[str, float] = {}
        self._told: set[str] = set()

    def begin(self, start: SequenceStart) -> None:
        self.forget(start.name)
        self._slot(start.name)
        if start.arrived is not None:
            self._arrived[start.name] = start.arrived

    def forget(self, sequence: str) -> None:
        self._told.discard(sequence)
        self._arrived.pop(sequence, None)
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            self._free.append(slot)

    def observe(self, step: StepView) -> Iterable[Finding]:
        if self._ttft is None and self._tbt is None:
            return NO_FINDINGS
        found: list[Finding] = []
        slots = np.fromiter((self._slot(name) for name in step.sequences), np.int64, len(step.sequences))
        since = step.time - self._last[slots]
        self._last[slots] = step.time
        if self._ttft is not None and np.isnan(since).any():
            self._first_tokens(found, step, np.flatnonzero(np.isnan(since)).tolist(), self._ttft)
        if self._tbt is not None:
            counts = np.fromiter((max(len(row), 1) for row in step.tokens), np.float64, len(step.tokens))
            waits = since / counts
            for row in self._tbt.add(slots, waits).tolist():
                self._tell(found, step, row, "tbt", float(waits[row]), self._tbt)
        return found or NO_FINDINGS

    def _first_tokens(self, found: list[Finding], step: StepView, rows: list[int], bursts: LateBursts) -> None:
        for row in rows:
            arrived = self._arrived.get(step.sequences[row], math.nan)
            # A sequence that was under way when it was first seen has no first token here.
            wait = step.time - arrived if step.output_lengths[row] == 0 else math.nan
            if len(bursts.add(np.zeros(1, np.int64), np.array([wait]))):
                self._tell(found, step, row, "ttft", wait, bursts)

    def _tell(self, found: list[Finding], step: StepView, row: int, what: str, wait: float, bursts: LateBursts) -> None:
        sequence = step.sequences[row]
        if sequence in self._told:
            return
        self._told.add(sequence)
        evidence = {f"{what}_seconds": round(wait, 4), "limit_seconds": bursts.limits.seconds}
        token = int(step.output_lengths[row])
        found.append(Finding(KIND, sequence, Severity.WARNING, step.step, token, self.name, self.version, evidence))

    def _slot(self, sequence: str) -> int:
        slot = self._slots.get(sequence)
        if slot is None:
            slot = self._slots[sequence] = self._free.pop() if self._free else len(self._slots)
            if slot >= len(self._last):
                self._last = np.concatenate((self._last, np.full(len(self._last), np.nan)))
            self._last[slot] = np.nan
            if self._tbt is not None:
                self._tbt.clear(slot)
        return slot


def _bursts(seconds: float | None, settings: LatencySettings) -> LateBursts | None:
    return None if seconds is None else LateBursts(BurstLimits(seconds, settings.burst, settings.forgiven))
