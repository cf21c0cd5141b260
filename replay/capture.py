"""What a bundle is made of, in memory. Audits judge it without a disk."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from checkengine.guards.finding import Finding
from checkengine.replay.executor import ReplayStep
from checkengine.replay.levels import Level
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.record import Ints, StepRecord
from checkengine.replay.recorded import RecordedWindow, row_slices, written_slots


def new_identifier() -> str:
    return secrets.token_hex(8)


@dataclass(slots=True)
class Capture:
    """`memory` is as of the capture: the last record's KV is in it. `undo` is in the order of writing, and covers
    every write into the image's blocks by anybody, as far back as it reaches."""

    window: RecordedWindow
    memory: MemoryImage
    involved: frozenset[int]
    """Handles whose rows are replayed as they were; every other row is a stand-in of equal shape."""
    histories: dict[int, Ints] = field(default_factory=dict)
    """By handle: output tokens before the sequence's first row in the window."""
    undo: list[UndoEntry] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=dict)
    """As EngineAdapter.environment()."""
    findings: tuple[Finding, ...] = ()
    incident: str | None = None
    identifier: str = field(default_factory=new_identifier)
    time: float = 0.0
    """Unix seconds of the capture."""
    level: Level = "L3"
    """How much of the KV memory is in it."""

    @property
    def first_exact_step(self) -> int | None:
        """First step before which every byte of the image is known; None where not even the last step's is."""
        return first_exact_step(self.window, self.undo, self.memory)

    def memory_at(self, step: int) -> MemoryImage:
        """The image as of just before `step` ran (exact from `first_exact_step` on)."""
        return self.memory.undo([entry for entry in self.undo if entry.step >= step])

    def replay_steps(self, first: int | None = None) -> Iterator[ReplayStep]:
        """Steps to run, in order, from `first` (None: from the first exact step, else from the window's first).

        `outputs` is empty for rows that are not involved and for sequences in `unknown_histories`.
        """
        first = self.first_exact_step if first is None else first
        followed = self.involved - unknown_histories(self)
        outputs = {handle: history.tolist() for handle, history in self.histories.items() if handle in followed}
        for record, tables in self.window.walk():
            before = outputs_before(record, self.window, outputs, followed)
            if first is None or record.step >= first:
                yield ReplayStep(
                    record=record,
                    block_tables=[tables[handle] for handle in record.handles.tolist()],
                    starts={handle: self.window.starts[handle] for handle in record.sampling_handles.tolist()},
                    outputs=before,
                )


def joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def inside(slots: Ints, image: MemoryImage) -> Ints:
    """Those of the slots whose block the image holds."""
    return slots[np.isin(slots // image.block_size, image.blocks)]


def read_slots(image: MemoryImage, slots: Ints) -> dict[str, torch.Tensor]:
    """The bytes of slots inside the image, shape (slots, layers, heads, dim)."""
    row = {int(block): index for index, block in enumerate(image.blocks)}
    rows = torch.tensor([row[slot // image.block_size] for slot in slots.tolist()], dtype=torch.long)
    offsets = torch.tensor((slots % image.block_size).tolist(), dtype=torch.long)
    return {name: tensor[rows, :, offsets] for name, tensor in image.tensors.items()}


def outputs_before(
    record: StepRecord, window: RecordedWindow, outputs: dict[int, list[int]], followed: frozenset[int]
) -> dict[int, Sequence[int]]:
    """Output tokens before this step of the rows that sample; `outputs` is brought up to and past this record."""
    before: dict[int, Sequence[int]] = {}
    sampled = iter(record.sampled.tolist())
    for (handle, start, count, where), samples in zip(row_slices(record), record.samples.tolist(), strict=True):
        token_after = next(sampled, None) if samples else None
        if handle not in followed:
            if samples:
                before[handle] = ()
            continue
        produced = outputs.setdefault(handle, [])
        begin = start - len(window.starts[handle].prompt_tokens)
        for index, token in enumerate(record.token_ids[where].tolist(), begin):
            put_token(produced, index, token)
        del produced[max(0, begin + count) :]
        if samples:
            before[handle] = tuple(produced)
        if token_after is not None:
            put_token(produced, begin + count, token_after)
    return before


def put_token(tokens: list[int], index: int, token: int) -> None:
    if index < 0:
        return
    tokens.extend([0] * (index + 1 - len(tokens)))
    tokens[index] = token


def unknown_histories(capture: Capture) -> set[int]:
    """Involved handles with output tokens before the window that the capture does not hold."""
    missing, seen = set(), set()
    for record in capture.window.records:
        for handle, start, _, _ in row_slices(record):
            if handle in seen or handle not in capture.involved:
                continue
            seen.add(handle)
            needed = start - len(capture.window.starts[handle].prompt_tokens)
            if needed > len(capture.histories.get(handle, ())):
                missing.add(handle)
    return missing


def first_exact_step(window: RecordedWindow, undo: Sequence[UndoEntry], memory: MemoryImage) -> int | None:
    """The earliest record from which on every write into the image's blocks has its old bytes in `undo`."""
    exact: int | None = None
    undone: dict[int, list[Ints]] = {}
    for entry in undo:
        undone.setdefault(entry.step, []).append(entry.slots)
    for record, tables in reversed(list(window.walk())):
        slots = inside(joined(list(written_slots(record, tables, memory.block_size).values())), memory)
        if not np.isin(slots, joined(undone.get(record.step, []))).all():
            return exact
        exact = record.step
    return exact
