"""Bundles of one op's call: what a minimal reproducer is kept as. Judged without a model."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checkengine.replay.bundle import layout, plain
from checkengine.replay.bundle.encryption import DataKey
from checkengine.replay.bundle.files import Entry, write_durably
from checkengine.replay.bundle.identity import PublicKey, own_identity
from checkengine.replay.bundle.layout import BundleError
from checkengine.replay.bundle.privacy import deployment_key
from checkengine.replay.bundle.read import MALFORMED, BundleReader
from checkengine.replay.bundle.write import seal, tensor_bytes, write_files, write_whole
from checkengine.replay.minimise.values import Values, made
from checkengine.replay.op_call import OpCall

TENSORS = ("query", "keys", "values", "sinks")


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call that shows a fault."""

    call: OpCall
    symptom: Mapping[str, Any]
    """Which fault, as JSON."""
    slot: int | None = None
    """The guilty one, where one slot is."""
    values: Values = Values.RECORDED
    seed: int = 0
    """Of the noise."""


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """What is told beside the call. Where its values are made up, none of it may be content."""

    environment: Mapping[str, Any]
    findings: Sequence[Mapping[str, Any]] = ()
    """As the manifest has them."""
    lineage: Mapping[str, Any] | None = None
    incident: str | None = None
    time: float = 0.0
    """Unix seconds; stands in the bundle's name."""


def holds_call(reader: BundleReader) -> bool:
    """Whether the bundle is a reproducer of one op: `read_call` opens it, `capture` does not."""
    return layout.CALL in reader.files


def write_call(
    stored: StoredCall,
    directory: Path | str,
    origin: CallOrigin,
    *,
    recipients: Sequence[PublicKey] = (),
    content_hours: float | None = None,
) -> Path:
    """Write into `directory` and return the bundle's path; durable when this returns. Made-up values are not stored but
    their seed; recorded ones are content, encrypted for `recipients` (default: this user). BundleError where it cannot
    be written."""
    identifier = identifier_of(stored)
    kind = str(stored.symptom["kind"]).replace(" ", "_")
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(origin.time))

    def fill(draft: Path) -> None:
        files = write_files(draft, core_files(stored, origin))
        content = None
        if stored.values is Values.RECORDED:
            content = write_tensors(draft, stored.call, identifier, recipients)
        expires = None if content is None or content_hours is None else origin.time + 3600 * content_hours
        seal(draft, manifest_json(identifier, origin, files, content, expires))

    return write_whole(directory, f"{when}-minimal-{kind}-{identifier}", fill)


def identifier_of(stored: StoredCall) -> str:
    """Of what is stored: the same reproducer has the same one. Keyed where it would depend on content."""
    told = plain.encode(call_json(stored))
    if stored.values is not Values.RECORDED:
        return hashlib.sha256(told).hexdigest()[:16]
    content = hashlib.sha256(tensor_bytes(tensors_of(stored.call))).hexdigest()
    return deployment_key().digest("call", told.decode() + content)[:16]


def core_files(stored: StoredCall, origin: CallOrigin) -> dict[str, bytes]:
    call = stored.call
    step = {"block_size": call.block_size, "steps": 0, "kernels": [call.kernel], "sequences": {}}
    return {
        layout.CALL: plain.encode(call_json(stored)),
        layout.ENVIRONMENT: plain.encode(origin.environment),
        layout.STEP: plain.encode(step),
        layout.LINEAGE: plain.encode(origin.lineage or {"parent": None}),
    }


def call_json(stored: StoredCall) -> dict[str, Any]:
    call, tensors = stored.call, tensors_of(stored.call)
    return {
        "op": "attention",
        "layer": call.layer,
        "kernel": call.kernel,
        "blocks": call.blocks.tolist(),
        "table": call.table.tolist(),
        "length": call.length,
        "scaling": call.scaling,
        "window": call.window,
        "softcap": call.softcap,
        "options": dict(call.options),
        "shapes": {name: list(tensor.shape) for name, tensor in tensors.items()},
        "dtypes": {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()},
        "values": {"are": str(stored.values), "seed": stored.seed},
        "symptom": dict(stored.symptom),
        "slot": stored.slot,
    }


def tensors_of(call: OpCall) -> dict[str, torch.Tensor]:
    found = {"query": call.query, "keys": call.keys, "values": call.values, "sinks": call.sinks}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def write_tensors(draft: Path, call: OpCall, identifier: str, recipients: Sequence[PublicKey]) -> Entry:
    key = DataKey.new(identifier)
    data = key.encrypt(tensor_bytes(tensors_of(call)), layout.CALL_TENSORS)
    files = write_files(draft, {layout.CALL_TENSORS: data})
    write_durably(draft / layout.KEYS, plain.encode(key.wrapped(recipients or (own_identity().public,))))
    listed = plain.encode({"files": {path: entry.to_json() for path, entry in files.items()}})
    return write_files(draft, {layout.CONTENT_MANIFEST: listed})[layout.CONTENT_MANIFEST]


def manifest_json(
    identifier: str, origin: CallOrigin, files: dict[str, Entry], content: Entry | None, expires: float | None
) -> dict[str, Any]:
    return {
        "format": layout.MAGIC,
        "version": list(layout.VERSION),
        "identifier": identifier,
        "incident": origin.incident,
        "time": origin.time,
        "level": "core" if content is None else "full",
        "findings": [dict(finding) for finding in origin.findings],
        "files": {path: entry.to_json() for path, entry in files.items()},
        "content": None if content is None else content.to_json(),
        "content_expires": expires,
        "capabilities": ["call"],
        "quirks": [],
        "unknown": [],
    }


def read_call(reader: BundleReader) -> StoredCall:
    """Opens content where values are recorded. BundleError where the bundle holds no call, or one that cannot be."""
    if not holds_call(reader):
        raise BundleError(f"{reader.path} holds a window of steps and no single call: replay it as such")
    told = reader.json(layout.CALL)
    try:
        values = Values(told["values"]["are"])
        shapes = {name: checked_shape(told["shapes"][name]) for name in TENSORS if name in told["shapes"]}
        if values is Values.RECORDED:
            tensors = reader.call_tensors()
        else:
            tensors = made_tensors(shapes, told["dtypes"], values, int(told["values"]["seed"]))
        stored = StoredCall(
            assembled(told, tensors), told["symptom"], told["slot"], values, int(told["values"]["seed"])
        )
        check_call(stored)
    except MALFORMED as error:
        raise BundleError(
            f"{reader.path / layout.CALL} is not as the format says ({type(error).__name__}: {error}): "
            "the bundle is damaged; fetch it again"
        ) from None
    return stored


def checked_shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 31 for size in shape):
        raise ValueError(f"a shape of {str(shape)[:80]}")
    if math.prod(shape) > layout.MOST_CALL_ELEMENTS:
        raise ValueError(f"a tensor of {math.prod(shape)} elements")
    return tuple(shape)


def made_tensors(
    shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str], values: Values, seed: int
) -> dict[str, torch.Tensor]:
    tensors = made((shapes["query"], shapes["keys"], shapes["values"], shapes.get("sinks")), values, seed)
    found = dict(zip(TENSORS, tensors, strict=True))
    return {name: found[name].to(dtype_of(dtypes[name])) for name in shapes}


def dtype_of(name: Any) -> torch.dtype:
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"a dtype of {str(name)[:40]!r}")
    return found


def assembled(told: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> OpCall:
    window, softcap = told["window"], told["softcap"]
    return OpCall(
        layer=int(told["layer"]),
        row=0,
        kernel=str(told["kernel"]),
        query=tensors["query"],
        keys=tensors["keys"],
        values=tensors["values"],
        blocks=np.array(told["blocks"], np.int32),
        table=np.array(told["table"], np.int32),
        length=int(told["length"]),
        scaling=float(told["scaling"]),
        window=None if window is None else int(window),
        softcap=None if softcap is None else float(softcap),
        sinks=tensors.get("sinks"),
        options=dict(told["options"]),
    )


def check_call(stored: StoredCall) -> None:
    """ValueError where numbers from a file would lead a kernel out of its memory."""
    call = stored.call
    if call.query.ndim != 3 or call.keys.ndim != 4 or call.values.ndim != 4:
        raise ValueError("tensors of other ranks than a call has")
    tokens, heads, key_dim = call.query.shape
    blocks, size, groups, width = call.keys.shape
    if call.values.shape[:3] != call.keys.shape[:3] or width != key_dim or not groups or heads % groups or not heads:
        raise ValueError("heads and dimensions that do not fit together")
    if call.sinks is not None and tuple(call.sinks.shape) != (heads,):
        raise ValueError("sinks that do not fit the heads")
    if not 1 <= size <= layout.MOST_BLOCK_SIZE or not 1 <= tokens <= call.length <= len(call.table) * size:
        raise ValueError("a length that does not fit the query and the block table")
    if call.blocks.shape != (blocks,) or (call.blocks < 0).any() or (np.diff(call.blocks) <= 0).any():
        raise ValueError("block numbers that are not sorted or negative")
    if call.table.ndim != 1 or not np.isin(call.table, call.blocks).all() or (call.window or 1) < 1:
        raise ValueError("a block table that leaves the memory, or a window of nothing")
    if stored.slot is not None and type(stored.slot) is not int:
        raise ValueError("a slot that is no number")
