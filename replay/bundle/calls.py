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
from checkengine.replay.minimise.values import Values, made_up, tensors_of, with_tensors
from checkengine.replay.op_call import Beside, OpCall

TENSORS = ("query", "keys", "values", "sinks")
MOST_BESIDE = 4096
"""Rows beside the call's own."""


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

    name = f"{when}-minimal-{kind}-{identifier}"
    if (Path(directory) / name / layout.MARKER).exists():
        return Path(directory) / name  # The very same call, of the same second.
    return write_whole(directory, name, fill)


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
        "place": call.place,
        "beside": [{"table": row.table.tolist(), "length": row.length} for row in call.beside],
    }


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
        shapes = {name: checked_shape(told["shapes"][name]) for name in names_in(told)}
        seed = int(told["values"]["seed"])
        if values is Values.RECORDED:
            tensors = reader.call_tensors()
        else:
            made = made_up(shapes, values, seed)
            tensors = {name: tensor.to(dtype_of(told["dtypes"][name])) for name, tensor in made.items()}
        stored = StoredCall(assembled(told, tensors), told["symptom"], told["slot"], values, seed)
        check_call(stored)
    except MALFORMED as error:
        raise BundleError(
            f"{reader.path / layout.CALL} is not as the format says ({type(error).__name__}: {error}): "
            "the bundle is damaged; fetch it again"
        ) from None
    return stored


def names_in(told: Mapping[str, Any]) -> list[str]:
    """Of the tensors, in the order in which made-up ones are made; JSON has lost it."""
    beside = told["beside"]
    if not isinstance(beside, list) or len(beside) > MOST_BESIDE:
        raise ValueError("rows beside the call's own that are no list, or too many")
    return [name for name in TENSORS if name in told["shapes"]] + [f"beside.{i}" for i in range(len(beside))]


def checked_shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 31 for size in shape):
        raise ValueError(f"a shape of {str(shape)[:80]}")
    if math.prod(shape) > layout.MOST_CALL_ELEMENTS:
        raise ValueError(f"a tensor of {math.prod(shape)} elements")
    return tuple(shape)


def dtype_of(name: Any) -> torch.dtype:
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"a dtype of {str(name)[:40]!r}")
    return found


def assembled(told: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> OpCall:
    window, softcap = told["window"], told["softcap"]
    nothing = torch.empty(0)
    call = OpCall(
        layer=int(told["layer"]),
        row=0,
        kernel=str(told["kernel"]),
        query=nothing,
        keys=nothing,
        values=nothing,
        blocks=np.array(told["blocks"], np.int32),
        table=np.array(told["table"], np.int32),
        length=int(told["length"]),
        scaling=float(told["scaling"]),
        window=None if window is None else int(window),
        softcap=None if softcap is None else float(softcap),
        options=dict(told["options"]),
        beside=tuple(Beside(nothing, np.array(row["table"], np.int32), int(row["length"])) for row in told["beside"]),
        place=int(told["place"]),
    )
    return with_tensors(call, tensors)


def check_call(stored: StoredCall) -> None:
    """ValueError where numbers from a file would lead a kernel out of its memory."""
    call = stored.call
    if call.query.ndim != 3 or call.keys.ndim != 4 or call.values.ndim != 4:
        raise ValueError("tensors of other ranks than a call has")
    blocks, size, groups, key_dim = call.keys.shape
    heads = call.query.shape[1]
    if call.values.shape[:3] != call.keys.shape[:3] or not groups or not heads or heads % groups:
        raise ValueError("keys, values and heads that do not fit together")
    if call.sinks is not None and tuple(call.sinks.shape) != (heads,):
        raise ValueError("sinks that do not fit the heads")
    if not 1 <= size <= layout.MOST_BLOCK_SIZE or (call.window or 1) < 1:
        raise ValueError("a block size or a window of nothing")
    if call.blocks.shape != (blocks,) or (call.blocks < 0).any() or (np.diff(call.blocks) <= 0).any():
        raise ValueError("block numbers that are negative or not sorted")
    for row in (Beside(call.query, call.table, call.length), *call.beside):
        check_row(row, call, (heads, key_dim))
    if not 0 <= call.place <= len(call.beside) or (stored.slot is not None and type(stored.slot) is not int):
        raise ValueError("a row or a slot that is not there")


def check_row(row: Beside, call: OpCall, shape: tuple[int, int]) -> None:
    if row.query.ndim != 3 or tuple(row.query.shape[1:]) != shape or row.query.dtype != call.query.dtype:
        raise ValueError("a query that does not fit the keys")
    if row.table.ndim != 1 or not np.isin(row.table, call.blocks).all():
        raise ValueError("a block table that leaves the memory")
    if not 1 <= len(row.query) <= row.length <= len(row.table) * call.block_size:
        raise ValueError("a length that does not fit the query and the block table")
