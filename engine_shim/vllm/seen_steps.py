"""A scheduler's step as a step record, for what looks at records: armed conditions, and the notes of requests."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np

from checkengine.engine_shim.request_notes import Note, RequestNotes
from checkengine.guards.action import Action
from checkengine.guards.finding import Finding
from checkengine.guards.step import SequenceStart, StepView
from checkengine.replay.record import Ints, StepRecord

REMEMBERED = 1 << 14
"""Sequences whose handle is known."""
MOST_SEEN = 32
"""Steps that wait to be noted together: one by one they would cost a step several times as much."""
NOT_TOLD = frozenset({"tokens", "prefix_hit"})
"""Fields of a condition that vLLM's scheduler does not tell here."""


class Handles:
    """Numbers for names."""

    def __init__(self) -> None:
        self._handles: OrderedDict[str, int] = OrderedDict()
        self._next = 0

    def of(self, names: Sequence[str]) -> tuple[Ints, tuple[SequenceStart, ...]]:
        """And the sequences that were seen for the first time."""
        begun = []
        for name in names:
            if name not in self._handles:
                self._handles[name] = self._next
                begun.append(SequenceStart(self._next, name))
                self._next += 1
        found = np.array([self._handles[name] for name in names], np.int32)
        while len(self._handles) > REMEMBERED:
            self._handles.popitem(last=False)
        return found, tuple(begun)


def seen_step(view: StepView, handles: Handles) -> StepRecord:
    """Every row samples; how many tokens it computed, and which, is not told."""
    rows = len(view.sequences)
    numbers, begun = handles.of(view.sequences)
    stats = view.stats if view.stats_of is None else None
    prints = None if stats is None else stats.fingerprint
    return StepRecord(
        step=view.step,
        time_ns=0,
        handles=numbers,
        query_lengths=np.ones(rows, np.int32),
        starts=(view.prompt_lengths + view.output_lengths - 1).astype(np.int32),
        samples=np.ones(rows, np.bool_),
        token_ids=np.zeros(rows, np.int32),
        begun=begun,
        kernel="vllm",
        fingerprints=np.empty(0, np.uint64) if prints is None else prints,
        stats=stats,
    )


class SchedulerNotes(RequestNotes):
    """A `SchedulerListener`: notes of each request from what the scheduler sees, many steps at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._handles = Handles()
        self._seen: deque[tuple[StepView, list[Finding]]] = deque()
        self._settling = threading.Lock()

    def step_done(self, view: StepView, findings: list[Finding], actions: list[Action]) -> None:  # type: ignore[override]
        self._seen.append((view, findings))
        if len(self._seen) >= MOST_SEEN:
            self._settle()

    def orders(self) -> tuple[()]:
        return ()

    def take(self, name: str) -> Note | None:
        self._settle()
        return super().take(name)

    def _settle(self) -> None:
        with self._settling:
            while self._seen:
                view, findings = self._seen.popleft()
                super().step_done(seen_step(view, self._handles), findings, ())
