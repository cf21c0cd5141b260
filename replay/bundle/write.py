"""Write a capture as a bundle: whole and durable, or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

from checkengine.replay.bundle import core, layout, plain
from checkengine.replay.bundle.columns import ring_columns, token_columns
from checkengine.replay.bundle.draft import held, remove_leftovers
from checkengine.replay.bundle.encryption import DataKey
from checkengine.replay.bundle.files import Entry, sync_directory, write_durably
from checkengine.replay.bundle.identity import PublicKey, own_identity
from checkengine.replay.bundle.layout import BundleError
from checkengine.replay.bundle.privacy import DeploymentKey, deployment_key
from checkengine.replay.capture import Capture
from checkengine.replay.involve import redact_uninvolved


def write_bundle(
    capture: Capture,
    directory: Path | str,
    *,
    content: Literal["none", "full"] = "none",
    key: DeploymentKey | None = None,
    lineage: dict[str, Any] | None = None,
    recipients: Sequence[PublicKey] = (),
    content_hours: float | None = None,
) -> Path:
    """Write into `directory` and return the bundle's path. When this returns, the bundle survives a power cut; when
    it raises BundleError (disk full, not writable), nothing is left that a reader takes for a bundle.

    `content`: "full" writes token ids and KV bytes of the involved sequences, encrypted for `recipients` (default: this
    user on this machine); rows of the others are stand-ins. It may be read for `content_hours`, by default for ever.
    `key`: default is this deployment's (see privacy).
    """
    protection = Protection(recipients or (own_identity().public,), content_hours) if content == "full" else None
    told, own_key = redact_uninvolved(capture), key or deployment_key()
    return write_whole(directory, bundle_name(capture), lambda draft: fill(draft, told, protection, own_key, lineage))


def write_whole(directory: Path | str, name: str, fill_draft: Callable[[Path], None]) -> Path:
    """A folder that is there in whole or not at all: `fill_draft` writes it under another name."""
    directory = Path(directory)
    draft = directory / f"{layout.LEFTOVER_PREFIX}{name}-{secrets.token_hex(4)}"
    try:
        draft.mkdir(parents=True)
        with held(draft):
            remove_leftovers(directory)
            fill_draft(draft)
            os.rename(draft, directory / name)
            sync_directory(directory)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise BundleError(f"bundle {name} cannot be written to {directory}: {advice(error)}") from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return directory / name


def advice(error: OSError) -> str:
    words = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{words}; make room there, or set [capture] content or window_steps lower"
    return f"{words}; choose a writable [capture] directory"


def bundle_name(capture: Capture) -> str:
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(capture.time))
    kind = capture.findings[0].kind if capture.findings else "capture"
    return f"{when}-{re.sub('[^A-Za-z0-9._-]', '_', kind)[:48]}-{capture.identifier}"


@dataclass(frozen=True, slots=True)
class Protection:
    """Of the content: for whom it is encrypted, and for how long it may be read."""

    recipients: Sequence[PublicKey]
    hours: float | None


def fill(
    draft: Path, capture: Capture, protection: Protection | None, key: DeploymentKey, lineage: dict[str, Any] | None
) -> None:
    content_entry = None
    if protection is not None:
        data_key = DataKey.new(capture.identifier)
        content_entry = write_content(draft, capture, data_key)
        write_durably(draft / layout.KEYS, plain.encode(data_key.wrapped(protection.recipients)))
    files = write_files(draft, core_files(capture, key, lineage))
    expires = None if protection is None or protection.hours is None else capture.time + 3600 * protection.hours
    seal(draft, manifest_json(capture, key, files, content_entry, expires))


def seal(draft: Path, manifest: dict[str, Any]) -> None:
    """Manifest and marker: only with everything else on the disk may a reader take the bundle for whole."""
    (draft / layout.RESULTS).mkdir()
    data = plain.encode(manifest)
    write_durably(draft / layout.MANIFEST, data)
    for folder in {path.parent for path in draft.rglob("*")} | {draft}:
        sync_directory(folder)
    write_durably(draft / layout.MARKER, plain.encode(marker_json(data)))
    sync_directory(draft)


def write_files(draft: Path, files: dict[str, bytes]) -> dict[str, Entry]:
    for path, data in files.items():
        write_durably(draft / path, data)
    return {path: Entry.of(data) for path, data in files.items()}


def core_files(capture: Capture, key: DeploymentKey, lineage: dict[str, Any] | None) -> dict[str, bytes]:
    kernels = sorted({record.kernel for record in capture.window.records})
    engine = json.dumps(str(capture.environment.get("engine", "unknown")))
    return {
        layout.ENVIRONMENT: plain.encode(capture.environment),
        layout.STEP: plain.encode(core.step_json(capture, kernels, key)),
        layout.RING: safetensors.numpy.save(contiguous(ring_columns(capture, kernels, key))),
        layout.SAMPLING: plain.encode(core.sampling_json(capture)),
        layout.PAGES: plain.encode(core.pages_json(capture)),
        layout.EXPECT: plain.encode(core.expect_json(capture)),
        layout.WEIGHTS: plain.encode(core.weights_json(capture.environment)),
        layout.REPLAY: core.REPLAY_TOML.format(engine=engine).encode(),
        layout.LINEAGE: plain.encode(lineage or {"parent": None}),
    }


def write_content(draft: Path, capture: Capture, key: DataKey) -> Entry:
    def written(path: str, data: bytes) -> dict[str, Entry]:
        return write_files(draft, {path: key.encrypt(data, path)})

    entries = written(layout.SEQUENCES, plain.encode(core.sequences_json(capture)))
    entries |= written(layout.TOKENS, safetensors.numpy.save(contiguous(token_columns(capture))))
    # One at a time: KV bytes are large, and each is held twice while it is written.
    entries |= written(layout.KV, tensor_bytes(capture.memory.tensors))
    entries |= written(layout.UNDO, tensor_bytes(undo_tensors(capture)))
    manifest = {"files": {path: entry.to_json() for path, entry in entries.items()}}
    return write_files(draft, {layout.CONTENT_MANIFEST: plain.encode(manifest)})[layout.CONTENT_MANIFEST]


def contiguous(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: np.ascontiguousarray(column) for name, column in columns.items()}


def tensor_bytes(tensors: dict[str, torch.Tensor]) -> bytes:
    """Own storage for each: safetensors refuses views that share one."""
    copies = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}
    data: bytes = safetensors.torch.save(copies)
    return data


def undo_tensors(capture: Capture) -> dict[str, torch.Tensor]:
    """All entries in a row: their steps, how many slots each, the slots, and `undo.<tensor name>`."""
    entries = capture.undo
    tensors = {
        "steps": torch.tensor([entry.step for entry in entries], dtype=torch.int64),
        "counts": torch.tensor([len(entry.slots) for entry in entries], dtype=torch.int64),
        "slots": torch.cat(
            [torch.from_numpy(np.asarray(e.slots, np.int32)) for e in entries] or [torch.empty(0, dtype=torch.int32)]
        ),
    }
    for name in capture.memory.tensors if entries else ():
        tensors[f"undo.{name}"] = torch.cat([entry.tensors[name] for entry in entries])
    return tensors


def manifest_json(
    capture: Capture, key: DeploymentKey, files: dict[str, Entry], content: Entry | None, expires: float | None
) -> dict[str, Any]:
    return {
        "format": layout.MAGIC,
        "version": list(layout.VERSION),
        "identifier": capture.identifier,
        "incident": capture.incident,
        "time": capture.time,
        "level": "core" if content is None else "full",
        "capture_level": capture.level,
        "findings": [core.finding_json(finding, key) for finding in capture.findings],
        "files": {path: entry.to_json() for path, entry in files.items()},
        "content": None if content is None else content.to_json(),
        "content_expires": expires,
        "capabilities": ["stand-ins"],
        "quirks": [],
        "unknown": [],
    }


def marker_json(manifest: bytes) -> dict[str, Any]:
    return {
        "magic": layout.MAGIC,
        "version": list(layout.VERSION),
        "ok": True,
        "form": "directory",
        "manifest": Entry.of(manifest).to_json(),
    }
