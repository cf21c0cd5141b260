"""Files that are there in whole or not at all, and files that are read without trust."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkengine.replay.bundle.layout import MOST_FILE_BYTES, BundleError

SAFE_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*){0,4}")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a manifest says of one file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Entry:
        return cls(len(data), hashlib.sha256(data).hexdigest())

    def to_json(self) -> dict[str, Any]:
        return {"bytes": self.size, "sha256": self.sha256}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Entry:
        if not isinstance(value, dict):
            raise BundleError(f"{where}: the manifest's entry is no object; fetch the bundle again")
        size, digest = value.get("bytes"), value.get("sha256")
        if type(size) is not int or not 0 <= size <= MOST_FILE_BYTES or not isinstance(digest, str):
            raise BundleError(f"{where}: the manifest gives no usable size and digest; fetch the bundle again")
        return cls(size, digest)


def write_durably(path: Path, data: bytes) -> None:
    """A new file, on the disk when this returns. OSError where it cannot be (disk full…): it is not there then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def replace_durably(path: Path, data: bytes) -> None:
    """A file that is there, old or new and never half, on the disk when this returns."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        write_durably(draft, data)
        os.replace(draft, path)
        sync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_inside(root: Path, path: str, *, most: int) -> bytes:
    """A regular file under `root`, reached through no symbolic link, of at most `most` bytes.

    BundleError otherwise; FileNotFoundError where it is not there.
    """
    descriptor = open_inside(root, path)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise BundleError(f"{root / path} is no regular file: not a bundle of this format")
        if found.st_size > most:
            raise BundleError(f"{root / path} has {found.st_size} bytes where at most {most} are right: it is damaged")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(found.st_size)
    finally:
        os.close(descriptor)


def open_inside(root: Path, path: str) -> int:
    if not SAFE_PATH.fullmatch(path):
        raise BundleError(f"{root}: the manifest names {path!r}, which lies outside a bundle: it was tampered with")
    *folders, name = path.split("/")
    descriptor = open_root(root)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BundleError(f"{root / path} cannot be read ({error.strerror}): a bundle holds plain files only") from None
    finally:
        os.close(descriptor)


def open_root(root: Path) -> int:
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise BundleError(f"{root} cannot be opened ({error.strerror}): give the path of a bundle's folder") from None


def read_verified(root: Path, path: str, entry: Entry) -> bytes:
    """The file's bytes, if size and digest are those of its manifest entry."""
    try:
        data = read_inside(root, path, most=entry.size)
    except FileNotFoundError:
        raise BundleError(f"{root / path} is missing: the bundle is damaged; fetch it again") from None
    if Entry.of(data) != entry:
        raise BundleError(f"{root / path} is not what its manifest says (SHA-256): damaged or changed; fetch it again")
    return data
