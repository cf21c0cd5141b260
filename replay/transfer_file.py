"""Both sides' records of one broken transfer as one file: `NAME.transfer`, a safetensors file.

    header       "checkengine.transfer": JSON: the format, the keyed block, what broke, labels and names of both sides
    arrays       STATION/TENSOR: keyed hashes, uint64, shape (layers, tokens, heads); stations are sealed and sent (the
                 writer's), seal (as it came), before, delivered and read (the reader's)

No content: hashes of cells are keyed (HMAC, per deployment) and compare equal where the cells did. No pickle; sizes are
checked before anything is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from checkengine.detectors.seal import Cells
from checkengine.replay.bundle.layout import BundleError
from checkengine.replay.bundle.privacy import DeploymentKey
from checkengine.replay.transfer import (
    DecodeRecord,
    Label,
    PrefillRecord,
    Transfer,
    broken_of,
    broken_values,
    label_of,
    label_values,
)

SUFFIX, DRAFT = ".transfer", ".part"
FORMAT = 1
MOST_BYTES = 64 * 2**20
KEPT = 64
"""Files in one folder; the oldest go."""
KEPT_DRAFTS = 4
"""Other processes may be at theirs."""
_DESCRIPTION = "checkengine.transfer"


class TransferError(BundleError):
    """The file is no transfer, or was torn."""


def write_transfer(transfer: Transfer, folder: Path, key: DeploymentKey, name: str) -> Path:
    """The file appears whole or not at all. OSError where the disk refuses it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{name}{SUFFIX}"
    draft = folder / f"{secrets.token_hex(8)}{DRAFT}"
    try:
        draft.write_bytes(to_bytes(transfer, key))
        draft.chmod(0o600)
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        _keep_newest(folder)
    return path


def _keep_newest(folder: Path) -> None:
    """Drafts of writers that died go with the oldest."""
    for kept, pattern in ((KEPT, f"*{SUFFIX}"), (KEPT_DRAFTS, f"*{DRAFT}")):
        for old in sorted(folder.glob(pattern), key=lambda each: each.stat().st_mtime)[:-kept]:
            old.unlink(missing_ok=True)


def to_bytes(transfer: Transfer, key: DeploymentKey) -> bytes:
    sent, came = transfer.prefill, transfer.decode
    stations: dict[str, Cells | None] = {
        "sealed": sent.sealed if sent else None,
        "sent": sent.sent if sent else None,
        "seal": came.sealed,
        "delivered": came.delivered,
        "read": came.read,
        "before": came.before,
    }
    arrays = {
        f"{station}/{name}": _keyed(hashes, key)
        for station, cells in stations.items()
        if cells is not None
        for name, hashes in cells.items()
    }
    described = {
        "format": FORMAT,
        "block": transfer.block,
        "time": transfer.time,
        "broken": broken_values(transfer.broken),
        "prefill": None if sent is None else {"writer": sent.writer, "label": _label(sent.label, key)},
        "decode": {
            "reader": came.reader,
            "writer": came.writer,
            "wanted": _label(came.wanted, key),
            "seal": _label(came.seal, key),
        },
    }
    written: bytes = safetensors.numpy.save(arrays, {_DESCRIPTION: json.dumps(described, sort_keys=True)})
    return written


def read_transfer(path: Path) -> Transfer:
    """TransferError where the file is not what `write_transfer` writes."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise TransferError(f"{path} has {size} bytes; at most {MOST_BYTES} are read")
        return from_bytes(path.read_bytes())
    except OSError as error:
        raise TransferError(f"{path} cannot be read: {error.strerror}") from None
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        if isinstance(error, BundleError):
            raise
        raise TransferError(f"{path} is no transfer, or was torn: {type(error).__name__}; fetch it again") from None


def from_bytes(data: bytes) -> Transfer:
    arrays = safetensors.numpy.load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    described = json.loads(header["__metadata__"][_DESCRIPTION])
    if described["format"] != FORMAT:
        raise ValueError(f"format {described['format']}")
    stations = _stations(arrays)
    sent, came = described["prefill"], described["decode"]
    return Transfer(
        str(described["block"]),
        broken_of(described["broken"]),
        None if sent is None else PrefillRecord(
            str(sent["writer"]), label_of(sent["label"]), stations["sealed"], stations.get("sent")
        ),
        DecodeRecord(
            str(came["reader"]), label_of(came["wanted"]), label_of(came["seal"]), str(came["writer"]),
            stations["seal"], stations.get("delivered"), stations["read"], stations.get("before"),
        ),
        float(described["time"]),
    )  # fmt: skip


def _stations(arrays: Mapping[str, Any]) -> dict[str, Cells]:
    found: dict[str, dict[str, Any]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, hashes in arrays.items():
        station, _, tensor = name.partition("/")
        if hashes.dtype != np.uint64 or hashes.ndim != 3:
            raise ValueError(f"{name} is no array of hashes")
        if shapes.setdefault(tensor, hashes.shape) != hashes.shape:
            raise ValueError(f"{name} has another shape than at its other stations")
        found.setdefault(station, {})[tensor] = hashes
    return {station: MappingProxyType(cells) for station, cells in found.items()}


def _label(label: Label, key: DeploymentKey) -> dict[str, Any]:
    return label_values(label) | {name: key.digest(f"kv {name}", getattr(label, name)) for name in ("tokens", "owner")}


def _keyed(hashes: np.ndarray[Any, np.dtype[np.uint64]], key: DeploymentKey) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Equal where they were equal. Each different value is hashed once: a block of one value has one hash."""
    values, places = np.unique(hashes, return_inverse=True)
    keyed: np.ndarray[Any, np.dtype[np.uint64]] = key.fingerprints(values)[places.reshape(hashes.shape)]
    return keyed


__all__ = ["KEPT", "SUFFIX", "TransferError", "from_bytes", "read_transfer", "to_bytes", "write_transfer"]
