"""What recording costs a vLLM worker's step at batch 256, from messages like vLLM's; no vLLM is needed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.vllm_traffic import CachedRequests, Message, NewRequest
from checkengine.engine_shim.vllm.kv_cache import PackedCache
from checkengine.engine_shim.vllm.recorder import StepRecorder
from checkengine.replay.settings import RecorderSettings

ROWS, CONTEXT, BLOCK_SIZE, STEPS = 256, 2048, 16, 640
MICROSECONDS_A_STEP = 100.0
UNDO_ROWS = 16
BATCH = 64


def vllm_recorder_figures() -> list[dict[str, Any]]:
    """CPU time of this thread; the fastest of several batches of steps, as other processes only ever add."""
    decode = seconds_a_step(StepRecorder(BLOCK_SIZE, None), ROWS)
    undo = undo_seconds()
    return [
        figure("vllm_recorder.step", decode * 1e6, "µs", MICROSECONDS_A_STEP),
        figure("vllm_recorder.undo_16_rows", undo * 1e6, "µs", 1500.0),
    ]


def seconds_a_step(recorder: StepRecorder, rows: int) -> float:
    names = [f"request-{index}" for index in range(rows)]
    begin(recorder, names)
    fingerprints = np.arange(rows, dtype=np.uint64)
    best, spent = float("inf"), 0.0
    for step in range(STEPS):
        message = decode_message(names, step)
        sampled = [[token] for token in range(step, step + rows)]
        began = time.thread_time()
        recorder.before_step(message)
        recorder.ran()
        recorder.after_step(names, sampled, fingerprints)
        spent += time.thread_time() - began
        if step % BATCH == BATCH - 1:
            best, spent = min(best, spent / BATCH), 0.0
    if recorder.off:
        raise RuntimeError(recorder.off)
    return best


def begin(recorder: StepRecorder, names: list[str]) -> None:
    """Everybody's prompt in one step."""
    width = CONTEXT // BLOCK_SIZE
    new = [
        NewRequest(name, list(range(CONTEXT)), (list(range(index * width, (index + 1) * width)),), 0)
        for index, name in enumerate(names)
    ]
    recorder.before_step(
        Message(
            new, num_scheduled_tokens=dict.fromkeys(names, CONTEXT), total_num_scheduled_tokens=CONTEXT * len(names)
        )
    )
    recorder.ran()
    recorder.after_step(names, [[1]] * len(names))


def decode_message(names: list[str], step: int) -> Message:
    """One token a row; a row in `BLOCK_SIZE` takes a new block every step, as rows that began together never do."""
    grown = step % BLOCK_SIZE == 0
    blocks: list[tuple[list[int], ...] | None] = [([70_000 + index],) if grown else None for index in range(len(names))]
    cached = CachedRequests(list(names), set(), [], {}, blocks, [CONTEXT + step] * len(names), [step + 1] * len(names))
    return Message([], cached, dict.fromkeys(names, 1), len(names))


def undo_seconds() -> float:
    """Old bytes of 16 rows' slots, in the packed layout of a CPU's 30 layers of 3 KV heads of 64 in float32."""
    size, heads, dim = 128, 3, 64

    def write(keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
        flat = cache.view(len(cache), heads, -1)
        dims = torch.arange(dim)
        for index, slot in enumerate(slots.tolist()):
            block, offset = divmod(slot, size)
            flat[block][:, dims * size + offset] = keys[index]
            flat[block][:, size * dim + offset * dim + dims] = values[index]

    cache = PackedCache([torch.zeros(24, heads, size, 2 * dim) for _ in range(30)], write)
    recorder = StepRecorder(size, cache, RecorderSettings(undo_bytes=64 << 20))
    assert recorder.undo is not None
    spent = []
    for step in range(3 * size):
        slots = (np.arange(UNDO_ROWS, dtype=np.int32) * size + step % size).astype(np.int32)
        began = time.thread_time()
        recorder.undo.save(step, slots)
        spent.append(time.thread_time() - began)
    return min(sum(spent[first : first + size]) / size for first in range(0, len(spent), size))
