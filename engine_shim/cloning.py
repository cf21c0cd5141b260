"""What a replay needs, cloned between a step's sampling and its commit."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkengine.engine_shim.adapter import EngineAdapter
from checkengine.guards.finding import Finding
from checkengine.replay.capture import Capture
from checkengine.replay.extent import extent_within
from checkengine.replay.levels import Level
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.record import Ints
from checkengine.replay.recorded import RecordedWindow
from checkengine.replay.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of the KV memory a capture may clone."""

    level: Level = "L3"
    kv_bytes: int | None = None
    """None: no bound."""
    all_rows: bool = False
    """Every row that ran beside the suspect is cloned too, where `kv_bytes` allow."""

    def blocks(self, adapter: EngineAdapter) -> int:
        """That many blocks, by the size of one."""
        if self.kv_bytes is None:
            return sys.maxsize
        one = adapter.snapshot(np.zeros(1, np.int32))
        size = sum(tensor.nbytes for tensor in one.tensors.values())
        return self.kv_bytes // max(1, size)


UNBOUNDED = Budget()


def take_capture(
    adapter: EngineAdapter, recorder: Recorder, handles: Iterable[int], *, first_step: int, **options: Any
) -> Capture:
    """Clone what a replay of these sequences needs, as of now: between a step's sampling and its commit. `options`: of
    `clone_window`."""
    return clone_window(adapter, recorder.window(first_step), handles, **options)


def clone_window(
    adapter: EngineAdapter,
    window: RecordedWindow,
    handles: Iterable[int],
    *,
    findings: tuple[Finding, ...] = (),
    incident: str | None = None,
    configuration: Mapping[str, Any] | None = None,
    budget: Budget = UNBOUNDED,
    outputs: Mapping[int, Ints] | None = None,
) -> Capture:
    """`window`: as it was recorded to now. `configuration` joins the environment: settings of ours that a replay runs
    with again. `outputs` by handle: output tokens that were saved earlier, of sequences that may be gone by now."""
    environment = {**adapter.environment(), **(configuration or {})}
    extent = extent_within(
        window,
        handles,
        int(environment["block_size"]),
        most_blocks=budget.blocks(adapter),
        level=budget.level,
        all_rows=budget.all_rows or bool(environment.get("all_rows")),
    )
    image = adapter.snapshot(extent.blocks)
    return Capture(
        window=window,
        memory=image,
        involved=extent.involved,
        level=extent.level,
        histories=histories(adapter, window, extent.involved, outputs or {}),
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


def histories(
    adapter: EngineAdapter, window: RecordedWindow, handles: frozenset[int], saved: Mapping[int, Ints]
) -> dict[int, Ints]:
    """By handle: the output tokens before the sequence's first row in the window. Of sequences that are gone what was
    saved counts; without it they are left out, since the window itself holds the tokens of what ended inside it."""
    found: dict[int, Ints] = {}
    for handle, before in outputs_before_window(window).items():
        if handle in handles and before > 0:
            tokens = saved.get(handle)
            if tokens is None or len(tokens) < before:
                tokens = outputs_of(adapter, window.starts[handle].name)
            found[handle] = tokens[:before]
    return {handle: tokens for handle, tokens in found.items() if len(tokens)}


def outputs_before_window(window: RecordedWindow) -> dict[int, int]:
    """By handle: how many output tokens it had before its first row."""
    counts: dict[int, int] = {}
    for record in window.records:
        for handle, start in zip(record.handles.tolist(), record.starts.tolist(), strict=True):
            if handle not in counts:
                counts[handle] = start - len(window.starts[handle].prompt_tokens)
    return counts


def outputs_of(adapter: EngineAdapter, name: str) -> Ints:
    try:
        return np.array(adapter.tokens(name)[1], np.int32)
    except KeyError:
        return np.empty(0, np.int32)
