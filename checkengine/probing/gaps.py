"""Gaps between launches: how long a device waits for its next piece of work, read from a trace of torch's profiler.

vLLM and SGLang write such traces themselves (`/start_profile`); `profiled` makes one of a model's decode steps. A gap
is the time between the end of what ran so far, on any stream, and the beginning of what runs next. On a CPU the pieces
are torch's operators on the thread that calls most of them, and a gap is what is not torch: Python, the dispatcher,
kernels of others (numba). What a profiler cannot see: waiting inside a kernel, and itself, though it slows a CPU down.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from checkengine.guards.errors import UserError

MOST_TRACE_BYTES = 2 << 30
"""Unpacked."""
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CPU_WORK = "cpu_op"
WARM_UP = 3
Interval = tuple[float, float]
"""Begin and end, microseconds."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Of one device, from the first launch to the last end. Seconds."""

    where: str
    launches: int
    """Kernels and copies of a device; operators that no other one called, on a CPU."""
    seconds: float
    busy: float
    """Share of `seconds` in which something ran."""
    median: float
    p99: float
    longest: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def gaps_of(where: str, intervals: Sequence[Interval], *, nested: bool = False) -> Gaps:
    """`nested`: what lies within another one was called by it and is no launch of its own."""
    ordered = sorted(intervals)
    merged: list[list[float]] = []
    outermost = 0
    for begin, end in ordered:
        if merged and begin < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
            outermost += 1
    idle = np.array([after[0] - before[1] for before, after in pairwise(merged)] or [0.0]) * 1e-6
    seconds = (merged[-1][1] - merged[0][0]) * 1e-6
    busy = 1 - float(idle.sum()) / seconds if seconds else 1.0
    median, p99 = (float(np.quantile(idle, share)) for share in (0.5, 0.99))
    return Gaps(where, outermost if nested else len(ordered), seconds, busy, median, p99, float(idle.max()))


def gaps_in(path: Path) -> list[Gaps]:
    """Of each device in a trace; of the CPU where there is none. Raises UserError for what is no such trace."""
    by_device: dict[str, list[Interval]] = defaultdict(list)
    by_thread: dict[str, list[Interval]] = defaultdict(list)
    for event in events_of(path):
        try:
            category, begin, took = event["cat"], float(event["ts"]), float(event["dur"])
        except (KeyError, TypeError, ValueError):
            continue
        if not (np.isfinite(begin) and 0 <= took < float("inf")):
            continue
        if category in DEVICE_WORK:
            arguments = event.get("args")
            device = arguments.get("device", 0) if isinstance(arguments, Mapping) else 0
            by_device[f"device {device}"].append((begin, begin + took))
        elif category == CPU_WORK:
            by_thread[str(event.get("tid"))].append((begin, begin + took))
    if by_device:
        return [gaps_of(device, found) for device, found in sorted(by_device.items())]
    if not by_thread:
        raise UserError(f"{path} tells of no kernel and no operator: is it a trace of torch's profiler?")
    return [gaps_of("cpu", max(by_thread.values(), key=len), nested=True)]


def events_of(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read(MOST_TRACE_BYTES + 1)
    except (OSError, EOFError) as error:
        raise UserError(f"the trace {path} cannot be read: {error}") from error
    if len(text) > MOST_TRACE_BYTES:
        raise UserError(f"the trace {path} is larger than {MOST_TRACE_BYTES >> 20} MiB; profile fewer steps")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON ({error}); give a trace of torch's profiler") from None
    events = told.get("traceEvents") if isinstance(told, Mapping) else told
    if not isinstance(events, list):
        raise UserError(f"{path} has no traceEvents; give a trace of torch's profiler")
    return [event for event in events if isinstance(event, Mapping)]


@dataclass(frozen=True, slots=True)
class Profiled:
    gaps: list[Gaps]
    step_seconds: float
    """Without the profiler."""
    profiled_step_seconds: float


def profiled(model: Any, rows: int, steps: int) -> Profiled:
    """Decode steps of `rows` sequences, without cache: one token each."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    device = next(model.parameters()).device
    tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])

    def run(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            model(input_ids=tokens, use_cache=False)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / count

    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        run(WARM_UP)
        bare = run(steps)
        with profile(activities=activities) as profiler:
            watched = run(steps)
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return Profiled(gaps_in(path), bare, watched)
