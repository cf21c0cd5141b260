"""Captures: the window, the tokens and the KV pages of the sequences involved, cloned while serving goes on."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkengine.engine_shim.adapter import EngineAdapter
from checkengine.guards.action import Action
from checkengine.guards.finding import Finding
from checkengine.replay.capture import Capture
from checkengine.replay.extent import extent_within
from checkengine.replay.fault_limit import FaultLimit
from checkengine.replay.levels import Level
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.record import Ints, StepRecord
from checkengine.replay.recorded import RecordedWindow
from checkengine.replay.recorder import Recorder

logger = logging.getLogger("checkengine.capture")

REMEMBERED = 10_000
"""Incidents that are known to have a bundle."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of the KV memory a capture may clone."""

    level: Level = "L3"
    kv_bytes: int | None = None
    """None: no bound."""

    def blocks(self, adapter: EngineAdapter) -> int:
        """That many blocks, by the size of one."""
        if self.kv_bytes is None:
            return sys.maxsize
        one = adapter.snapshot(np.zeros(1, np.int32))
        size = sum(tensor.nbytes for tensor in one.tensors.values())
        return self.kv_bytes // max(1, size)


UNBOUNDED = Budget()


def take_capture(
    adapter: EngineAdapter,
    recorder: Recorder,
    handles: Iterable[int],
    *,
    first_step: int,
    findings: tuple[Finding, ...] = (),
    incident: str | None = None,
    configuration: Mapping[str, Any] | None = None,
) -> Capture:
    """Clone what a replay of these sequences needs, as of now: between a step's sampling and its commit.

    `configuration` joins the environment: settings of ours that a replay runs with again.
    """
    return _captured(adapter, recorder.window(first_step), handles, findings, incident, configuration)


def _captured(
    adapter: EngineAdapter,
    window: RecordedWindow,
    handles: Iterable[int],
    findings: tuple[Finding, ...],
    incident: str | None,
    configuration: Mapping[str, Any] | None,
    budget: Budget = UNBOUNDED,
) -> Capture:
    environment = {**adapter.environment(), **(configuration or {})}
    extent = extent_within(
        window,
        handles,
        int(environment["block_size"]),
        most_blocks=budget.blocks(adapter),
        level=budget.level,
        all_rows=bool(environment.get("all_rows")),
    )
    image = adapter.snapshot(extent.blocks)
    return Capture(
        window=window,
        memory=image,
        involved=extent.involved,
        level=extent.level,
        histories=histories(adapter, window, extent.involved),
        undo=[kept_undo(entry, image) for entry in adapter.undo_entries(window.first_step, image.blocks)],
        environment=environment,
        findings=findings,
        incident=incident,
        time=time.time(),
    )


def kept_undo(entry: UndoEntry, image: MemoryImage) -> UndoEntry:
    """The part of an undo entry that lies in the image."""
    rows = np.flatnonzero(np.isin(entry.slots // image.block_size, image.blocks))
    if len(rows) == len(entry.slots):
        return entry
    return UndoEntry(entry.step, entry.slots[rows], {name: tensor[rows] for name, tensor in entry.tensors.items()})


def histories(adapter: EngineAdapter, window: RecordedWindow, handles: frozenset[int]) -> dict[int, Ints]:
    """By handle: the output tokens before the sequence's first row in the window; sequences that are gone are left
    out, since the window itself holds the tokens of what ended inside it."""
    found: dict[int, Ints] = {}
    for record in window.records:
        for handle, start in zip(record.handles.tolist(), record.starts.tolist(), strict=True):
            if handle not in handles or handle in found:
                continue
            before = start - len(window.starts[handle].prompt_tokens)
            found[handle] = np.array(outputs_of(adapter, window.starts[handle].name)[: max(before, 0)], np.int32)
    return {handle: tokens for handle, tokens in found.items() if len(tokens)}


def outputs_of(adapter: EngineAdapter, name: str) -> list[int]:
    try:
        return list(adapter.tokens(name)[1])
    except KeyError:
        return []


class CaptureOnFinding:
    """A step listener: one capture an incident, handed to a writer on a thread of its own."""

    def __init__(
        self,
        adapter: EngineAdapter,
        recorder: Recorder,
        write: Callable[[Capture], None],
        *,
        incident_of: Callable[[str], str | None],
        window_steps: int,
        configuration: Mapping[str, Any] | None = None,
        waiting: int = 2,
        budget: Budget = UNBOUNDED,
        limit: FaultLimit | None = None,
    ) -> None:
        """`write` puts a capture on disk and tells of it. Captures hold KV pages: at most `waiting` wait for it.
        `incident_of` tells the incident of a sequence: a guard that only observes is captured too."""
        self.dropped = 0
        """Captures that were not taken because the writer is behind."""
        self.enabled = True
        self._adapter = adapter
        self._recorder = recorder
        self._write = write
        self._incident_of = incident_of
        self._window_steps = window_steps
        self._configuration = configuration
        self.duplicates = 0
        """Captures that were not taken because the fault has enough of them."""
        self._budget = budget
        self._limit = limit
        self._captured: OrderedDict[str, None] = OrderedDict()
        self._queue: queue.Queue[Capture | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._run, name="checkengine-capture", daemon=True)
        self._thread.start()

    def step_done(self, record: StepRecord, findings: list[Finding], actions: list[Action]) -> None:
        for finding in findings:
            incident = self._incident_of(finding.sequence)
            if self.enabled and incident is not None and incident not in self._captured:
                self._remember(incident)
                self._capture(record, finding.sequence, incident, findings)

    def close(self, timeout: float = 30.0) -> None:
        """Write what waits, then end the thread; what is not written within `timeout` seconds is lost."""
        self.enabled = False
        try:
            self._queue.put(None, timeout=timeout)
        except queue.Full:
            logger.warning("the bundle writer hangs: %d captures are not written", self._queue.qsize())
            return
        self._thread.join(timeout)

    def _remember(self, incident: str) -> None:
        self._captured[incident] = None
        while len(self._captured) > REMEMBERED:
            self._captured.popitem(last=False)

    def _capture(self, record: StepRecord, sequence: str, incident: str, findings: list[Finding]) -> None:
        if self._queue.full():  # before the copy, which would be for nothing
            self._drop(incident)
            return
        window = self._recorder.window(max(0, record.step - self._window_steps + 1))
        starts = window.starts
        handles = [handle for handle in record.handles.tolist() if handle in starts and starts[handle].name == sequence]
        if not handles:
            logger.warning("no capture of incident %s: step %d could not be recorded", incident, record.step)
            return
        own = tuple(finding for finding in findings if finding.sequence == sequence)
        if self._limit is not None and not self._limit.admit(own[0], record.kernel, time.time()):
            self.duplicates += 1
            logger.info("no capture of incident %s: there are enough of this fault", incident)
            return
        capture = _captured(self._adapter, window, handles, own, incident, self._configuration, self._budget)
        if capture.level != self._budget.level:
            logger.warning("capture of incident %s is of level %s: more is beyond kv_bytes", incident, capture.level)
        try:
            self._queue.put_nowait(capture)
        except queue.Full:  # `close` came in between
            self._drop(incident)

    def _drop(self, incident: str) -> None:
        self.dropped += 1
        logger.warning("no capture of incident %s: the bundle writer is behind", incident)

    def _run(self) -> None:
        while (capture := self._queue.get()) is not None:
            try:
                self._write(capture)
            except Exception:
                logger.exception("the bundle of incident %s could not be written", capture.incident)
