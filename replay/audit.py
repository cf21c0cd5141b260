"""Audits: now and then a healthy-looking step is judged in memory, off the serving path (design rule 12).

A kernel that reads a stale slot can leave the text fluent; no guard on outputs sees it. The fills do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.events import AuditJudged
from checkengine.replay.capture import Capture
from checkengine.replay.executor import Executor
from checkengine.replay.judge.judge import Judge
from checkengine.replay.judge.verdict import Verdict, VerdictKind
from checkengine.replay.record import StepRecord
from checkengine.replay.windows import build_window

Stratum = str
"""Where such faults live: page start, page full, page end, chunk edge, prefix hit, reused block, fresh length."""


@dataclass(slots=True)
class Auditor:
    """Judges the last step of a capture, each involved row by itself: all other memory counts as unowned."""

    executor: Executor
    repeats: int = 2

    def audit(self, capture: Capture) -> Verdict:
        """The first verdict that tells of a fault, else the last one. Raises CannotReplayError where the step cannot
        be run. Nothing is written; the capture may be dropped afterwards."""
        step = capture.window.last_step
        judge = Judge(self.executor, repeats=self.repeats)
        verdict = Verdict(VerdictKind.INCONCLUSIVE, "no involved row took part in the audited step", step=step)
        present = set(capture.window.records[-1].handles.tolist())
        for handle in sorted(capture.involved & present):
            # A mixture of experts needs all rows as they were; then they are judged together.
            rows = capture.involved if capture.environment.get("all_rows") else {handle}
            verdict = judge.judge(build_window(capture, involved=rows, first=step, last=step))
            if verdict.kind is not VerdictKind.NO_FAULT:
                return verdict
        return verdict


def audit_event(verdict: Verdict, capture: Capture, time: float, incident: str | None = None) -> AuditJudged:
    sequence = verdict.sequence or ""
    return AuditJudged(incident, sequence, capture.window.last_step, str(verdict.kind), time)


@dataclass(slots=True)
class AuditSchedule:
    """Which step to audit, and which of its rows. One step in `every_steps` on average; within a step, rows of the
    strata that were audited least come first."""

    every_steps: int
    block_size: int
    seed: int = 0
    rows_per_audit: int = 2
    counts: dict[Stratum, int] = field(default_factory=dict)
    """Rows audited so far, by stratum."""
    _random: np.random.Generator = field(init=False)
    _due: int = field(init=False)
    _lengths: set[int] = field(default_factory=set)
    _blocks: set[int] = field(default_factory=set)
    _starts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, got {self.every_steps}")
        self._random = np.random.default_rng(self.seed)
        self._due = self._gap()

    def choose(self, record: StepRecord) -> list[int]:
        """Handles to audit in this step; mostly none. Call once a step, in order."""
        self._due -= 1
        strata = self.strata(record) if self._due <= 0 else []
        self._note(record)
        if self._due > 0 or not strata:
            return []
        self._due = self._gap()
        order = self._random.permutation(len(strata))
        ranked = sorted(order.tolist(), key=lambda row: min(self.counts.get(s, 0) for s in strata[row]))
        chosen = ranked[: self.rows_per_audit]
        for row in chosen:
            for stratum in strata[row]:
                self.counts[stratum] = self.counts.get(stratum, 0) + 1
        return [int(record.handles[row]) for row in chosen]

    def strata(self, record: StepRecord) -> list[list[Stratum]]:
        """Of every row."""
        lengths = record.starts + record.query_lengths
        reused = self._reused(record.block_changes)
        rows = zip(record.handles.tolist(), record.starts.tolist(), lengths.tolist(), strict=True)
        return [self._strata_of(handle, start, length, handle in reused) for handle, start, length in rows]

    def _strata_of(self, handle: int, start: int, length: int, reused: bool) -> list[Stratum]:
        offsets = {1: "page start", 0: "page full", self.block_size - 1: "page end"}
        found = [offsets[length % self.block_size]] if length % self.block_size in offsets else []
        if handle not in self._starts and start:
            found.append("prefix hit")
        if length - start > 1 and start:
            found.append("chunk edge")
        if reused:
            found.append("reused block")
        if length not in self._lengths:
            found.append("fresh length")
        return found or ["other"]

    def _reused(self, changes: NDArray[np.int32]) -> set[int]:
        """Handles that were given, in this step, a block that another sequence had before."""
        return {int(handle) for handle, _, block in changes.tolist() if block in self._blocks}

    def _note(self, record: StepRecord) -> None:
        self._lengths.update((record.starts + record.query_lengths).tolist())
        self._blocks.update(block for block in record.block_changes[:, 2].tolist() if block >= 0)
        for handle in record.handles.tolist():
            self._starts.setdefault(handle, record.step)
        for handle in record.ended:
            self._starts.pop(handle, None)

    def _gap(self) -> int:
        """Uniform around the mean, so that no rhythm of the traffic can hide from it."""
        return int(self._random.integers(1, 2 * self.every_steps))
