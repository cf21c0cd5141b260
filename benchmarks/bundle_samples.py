"""Small captures, whole in every part, without an engine."""

from __future__ import annotations

import time

import numpy as np
import torch

from checkengine.guards.finding import Finding, Severity
from checkengine.guards.step import SequenceStart
from checkengine.replay.capture import Capture
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.record import BlockTables, StepRecord
from checkengine.replay.recorder import Recorder

BLOCK_SIZE, LAYERS, HEADS = 4, 2, 1


def small_capture(*, rows: int = 3, steps: int = 8, dimension: int = 8) -> Capture:
    """Every row decodes from a prompt of six tokens on, on blocks of its own; the undo ring covers all steps."""
    recorder = Recorder(256, 1 << 20)
    blocks = 1 + (6 + steps) // BLOCK_SIZE
    handles = np.arange(rows, dtype=np.int32)
    flat = (np.arange(rows * blocks) + 1).astype(np.int32)
    tables = BlockTables(handles, np.full(rows, blocks, np.int32), flat)
    undo, random = [], torch.Generator().manual_seed(1)
    for step in range(steps):
        record = decode(step, handles, tables)
        recorder.begin(record)
        recorder.finish(step, np.arange(rows, dtype=np.uint64) + 100 * step, handles + step)
        slots = flat.reshape(rows, blocks)[:, (6 + step) // BLOCK_SIZE] * BLOCK_SIZE + (6 + step) % BLOCK_SIZE
        old = {name: torch.randn(rows, LAYERS, HEADS, dimension, generator=random) for name in ("kv.key", "kv.value")}
        undo.append(UndoEntry(step, slots.astype(np.int32), old))
    held = np.arange(rows * blocks + 2, dtype=np.int32)
    shape = (len(held), LAYERS, BLOCK_SIZE, HEADS, dimension)
    tensors = {name: torch.randn(shape, generator=random) for name in ("kv.key", "kv.value")}
    return Capture(
        window=recorder.window(),
        memory=MemoryImage(BLOCK_SIZE, held, tensors, {"kv": range(LAYERS)}),
        involved=frozenset([0, 1]),
        undo=undo,
        environment={"engine": "sample", "block_size": BLOCK_SIZE, "libraries": {"torch": torch.__version__}},
        findings=(Finding("language.switch", "s0", Severity.WARNING, steps - 1, 2, "language", 1, {"share": 0.5}),),
        incident="incident-1",
        time=time.time(),
    )


def decode(step: int, handles: np.ndarray[tuple[int], np.dtype[np.int32]], tables: BlockTables) -> StepRecord:
    count = len(handles)
    sampling = {"temperature": 0.7, "seed": 1, "stop": ("end",)}
    return StepRecord(
        step=step,
        time_ns=step,
        handles=handles,
        query_lengths=np.ones(count, np.int32),
        starts=np.full(count, 6 + step, np.int32),
        samples=np.ones(count, np.bool_),
        token_ids=handles + step,
        tables=lambda: tables,
        begun=tuple(SequenceStart(h, f"s{h}", tuple(range(6)), sampling) for h in handles.tolist()) if not step else (),
    )
