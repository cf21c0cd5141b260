"""What the black box costs: time a step, memory, and time to take a window and to write a bundle."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from checkengine.benchmarks.figure import figure
from checkengine.guards.step import SequenceStart
from checkengine.replay.bundle import BundleReader, write_bundle
from checkengine.replay.capture import Capture
from checkengine.replay.memory import MemoryImage
from checkengine.replay.record import BlockTables, StepRecord
from checkengine.replay.recorder import Recorder
from checkengine.replay.undo import UndoRing

T = TypeVar("T")
ROWS, CONTEXT, BLOCK_SIZE, STEPS = 256, 4096, 32, 4096
BATCH = 256
MICROSECONDS_A_STEP = 10.0
MEBIBYTES = 64.0


def recorder_figures() -> list[dict[str, Any]]:
    """Figures as every measuring command gives them. CPU time of this thread, so that other processes count little."""
    recorder = Recorder(STEPS)
    steps = [decode_step(step) for step in range(BATCH)]
    seconds = fastest_batch(recorder, steps, batches=2 * STEPS // BATCH)
    peer = json_seconds(steps[1])
    window, window_seconds = timed(recorder.window)
    _, recent_seconds = timed(lambda: recorder.window(STEPS * 2 - 64))
    return [
        figure("recorder.step", seconds * 1e6, "µs", MICROSECONDS_A_STEP, peer=("JSON of the same step", peer * 1e6)),
        figure("recorder.memory", recorder.bytes_used() / 2**20, "MiB", MEBIBYTES),
        figure("recorder.steps_kept", len(window), "steps", STEPS - BATCH, at_least=True),
        figure("recorder.dropped", recorder.dropped, "steps", 0),
        figure("recorder.window_all", window_seconds * 1e3, "ms", 5000.0),
        figure("recorder.window_64", recent_seconds * 1e3, "ms", 500.0),
        undo_figure(),
        *bundle_figures(),
    ]


def decode_step(step: int) -> StepRecord:
    """Every row decodes one token at a context of 4,096; one row in `BLOCK_SIZE` takes a new block."""
    handles = np.arange(ROWS, dtype=np.int32)
    blocks = CONTEXT // BLOCK_SIZE
    grown = handles[step % BLOCK_SIZE :: BLOCK_SIZE]
    changes = np.stack([grown, np.full_like(grown, blocks), grown + step], axis=1).astype(np.int32)
    tables = BlockTables(handles, np.full(ROWS, blocks + 1, np.int32), np.arange(ROWS * (blocks + 1), dtype=np.int32))
    return StepRecord(
        step=step,
        time_ns=step,
        handles=handles,
        query_lengths=np.ones(ROWS, np.int32),
        starts=np.full(ROWS, CONTEXT, np.int32),
        samples=np.ones(ROWS, np.bool_),
        token_ids=handles + step,
        block_changes=changes,
        tables=lambda: tables,
        begun=tuple(SequenceStart(int(h), f"s{h}", (1, 2, 3)) for h in handles) if step == 0 else (),
    )


def fastest_batch(recorder: Recorder, steps: list[StepRecord], batches: int) -> float:
    """Seconds a step, of the fastest batch: what else runs on the machine only ever adds."""
    fingerprints = np.arange(ROWS, dtype=np.uint64)
    best = float("inf")
    for batch in range(batches):
        for index, record in enumerate(steps):
            record.step = batch * len(steps) + index
            record.begun = record.begun if batch == 0 else ()
        began = time.thread_time()
        for record in steps:
            recorder.begin(record)
            recorder.finish(record.step, fingerprints, record.token_ids)
        best = min(best, (time.thread_time() - began) / len(steps))
    return best


def json_seconds(record: StepRecord) -> float:
    names = ("handles", "query_lengths", "starts", "samples", "token_ids", "block_changes")
    _, seconds = timed(lambda: json.dumps({name: getattr(record, name).tolist() for name in names}))
    return seconds


def undo_figure() -> dict[str, Any]:
    """16 rows decode on a model with 30 layers and 3 KV heads of 64 in float32."""
    ring = UndoRing(64, 64 << 20)
    slots = np.arange(16, dtype=np.int32)
    tensors = {f"full.{part}": torch.zeros(16, 30, 3, 64) for part in ("key", "value")}
    for step in range(64):
        ring.save(step, slots, tensors)
    seconds = min(timed(lambda step=step: ring.save(step, slots, tensors))[1] for step in range(64, 256))  # type: ignore[misc]
    return figure("undo.step", seconds * 1e6, "µs", 1000.0)


def bundle_figures() -> list[dict[str, Any]]:
    """64 steps of 16 rows and 64 MiB of KV: written durably, then verified."""
    capture = sample_capture()
    with tempfile.TemporaryDirectory() as folder:
        path, write_seconds = timed(lambda: write_bundle(capture, folder, content="full"))
        _, verify_seconds = timed(lambda: BundleReader(path).verify())
        size = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    return [
        figure("bundle.write", write_seconds, "s", 5.0),
        figure("bundle.verify", verify_seconds, "s", 5.0),
        figure("bundle.size", size / 2**20, "MiB", 80.0),
    ]


def sample_capture() -> Capture:
    recorder = Recorder(64)
    for step in range(64):
        record = decode_step(step)
        recorder.begin(record)
        recorder.finish(step, np.arange(ROWS, dtype=np.uint64), record.token_ids)
    blocks = np.arange(46, dtype=np.int32)
    tensors = {f"full.{part}": torch.rand(46, 30, BLOCK_SIZE, 3, 64) for part in ("key", "value")}
    memory = MemoryImage(BLOCK_SIZE, blocks, tensors, {"full": range(30)})
    return Capture(recorder.window(), memory, frozenset(range(16)), time=time.time())


def timed(call: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began
