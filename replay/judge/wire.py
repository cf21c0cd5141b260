"""A window as bytes, for another process: JSON and safetensors through a pipe, so that content touches no disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import safetensors.torch
import torch

from checkengine.guards.step import SequenceStart
from checkengine.replay.executor import ReplayStep
from checkengine.replay.memory import MemoryImage, UndoEntry
from checkengine.replay.record import StepRecord
from checkengine.replay.window import Window, WindowStep

Tensors = dict[str, torch.Tensor]
RECORD = ("handles", "query_lengths", "starts", "samples", "token_ids", "sampled")


@dataclass(slots=True)
class Job:
    """Run the window's last step `runs` times, after the steps before it, on its memory."""

    environment: Mapping[str, Any]
    window: Window
    fill: float | None
    runs: int


def pack(job: Job) -> bytes:
    tensors: Tensors = {"blocks": tensor(job.window.image.blocks), "scratch": tensor(job.window.scratch)}
    tensors |= {f"image/{name}": value for name, value in job.window.image.tensors.items()}
    steps = [pack_step(step, f"{index}/", tensors) for index, step in enumerate(job.window.steps)]
    told = {
        "environment": dict(job.environment),
        "fill": job.fill,
        "runs": job.runs,
        "block_size": job.window.image.block_size,
        "layers": {name: list(layers) for name, layers in job.window.image.layers.items()},
        "exact_from": job.window.exact_from,
        "starts": [asdict(start) for start in job.window.starts.values()],
        "steps": steps,
    }
    head = json.dumps(told, default=plain).encode()
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return len(head).to_bytes(8, "little") + head + bytes(safetensors.torch.save(contiguous))


def unpack(data: bytes) -> Job:
    size = int.from_bytes(data[:8], "little")
    told, tensors = json.loads(data[8 : 8 + size]), safetensors.torch.load(data[8 + size :])
    images = {name.removeprefix("image/"): value for name, value in tensors.items() if name.startswith("image/")}
    image = MemoryImage(told["block_size"], array(tensors["blocks"]), images, told["layers"])
    starts = [start_of(start) for start in told["starts"]]
    steps = [unpack_step(step, f"{index}/", tensors) for index, step in enumerate(told["steps"])]
    by_handle = {start.handle: start for start in starts}
    window = Window(image, steps, by_handle, told["exact_from"], array(tensors["scratch"]))
    return Job(told["environment"], window, told["fill"], told["runs"])


def pack_step(step: WindowStep, prefix: str, tensors: Tensors) -> dict[str, Any]:
    record = step.replay.record
    arrays = {name: getattr(record, name) for name in RECORD}
    arrays |= {"involved": step.involved, "live": step.live, "read": step.read, "again": step.neighbours_read}
    tables = step.replay.block_tables
    arrays |= {"tables": np.concatenate(tables), "widths": np.array([len(table) for table in tables], np.int32)}
    tensors.update({prefix + name: tensor(value) for name, value in arrays.items()})
    if step.neighbours is not None:
        tensors[prefix + "others"] = tensor(step.neighbours.slots)
        tensors.update({f"{prefix}bytes/{name}": value for name, value in step.neighbours.tensors.items()})
    return {
        "step": record.step,
        "time_ns": record.time_ns,
        "kernel": record.kernel,
        "starts": [asdict(start) for start in step.replay.starts.values()],
        "outputs": [[handle, list(tokens)] for handle, tokens in step.replay.outputs.items()],
    }


def unpack_step(told: Mapping[str, Any], prefix: str, tensors: Tensors) -> WindowStep:
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    record = StepRecord(
        step=told["step"],
        time_ns=told["time_ns"],
        kernel=told["kernel"],
        **{name: array(own[name]) for name in RECORD},
    )
    ends = np.cumsum(array(own["widths"]))[:-1]
    replay = ReplayStep(
        record,
        np.split(array(own["tables"]), ends),
        {start["handle"]: start_of(start) for start in told["starts"]},
        {handle: tuple(tokens) for handle, tokens in told["outputs"]},
    )
    step = WindowStep(replay, array(own["involved"]), array(own["live"]), array(own["read"]))
    if "others" not in own:
        return step
    kept = {name.removeprefix("bytes/"): value for name, value in own.items() if name.startswith("bytes/")}
    entry = UndoEntry(record.step, array(own["others"]), kept)
    return replace(step, neighbours=entry, neighbours_read=array(own["again"]))


def start_of(told: Mapping[str, Any]) -> SequenceStart:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}
    return SequenceStart(**values)


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def tensor(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def array(values: torch.Tensor) -> Any:
    return values.numpy()
