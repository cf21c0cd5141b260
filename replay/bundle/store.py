"""A directory of bundles: list, keep few enough, erase content, add results."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkengine.replay.bundle import layout, plain
from checkengine.replay.bundle.draft import set_aside
from checkengine.replay.bundle.expiry import held
from checkengine.replay.bundle.files import read_inside, sync_directory, write_durably
from checkengine.replay.bundle.layout import BundleError


def bundles_in(directory: Path | str) -> list[Path]:
    """Folders with a marker, oldest first (their names begin with the time); none where there is no directory."""
    found = [path.parent for path in Path(directory).glob(f"*/{layout.MARKER}")]
    return sorted(path for path in found if not path.name.startswith("."))


def keep_newest(directory: Path | str, count: int) -> list[Path]:
    """Remove the oldest bundles until `count` are left; returns what was removed. Held ones stay, uncounted."""
    free = [path for path in bundles_in(directory) if not held(path)]
    surplus = free[: max(0, len(free) - count)]
    for path in surplus:
        remove(path)
    return surplus


def remove(bundle: Path | str) -> None:
    """The whole bundle. The key goes first; then it is no bundle from one moment to the next, and who dies after that
    leaves the rest to the next sweep. BundleError where the disk refuses."""
    folder = Path(bundle)
    try:
        (folder / layout.KEYS).unlink(missing_ok=True)
        sync_directory(folder)
        swept = set_aside(folder)
        sync_directory(folder.parent)
    except OSError as error:
        raise BundleError(f"{folder} cannot be removed: {error.strerror}") from None
    shutil.rmtree(swept, ignore_errors=True)


def has_content(bundle: Path | str) -> bool:
    """Whether anything is left to erase: content, a key to it, or what an erasure that was cut short left behind."""
    folder = Path(bundle)
    key = (folder / layout.KEYS).exists() and layout.KEYS not in _core_files(folder)
    return key or (folder / layout.CONTENT).exists() or any(folder.glob(f".{layout.CONTENT}-*"))


def erase_content(bundle: Path | str) -> bool:
    """Destroy the key, then remove token ids and KV bytes; what is left can still be opened, shown and verified. False
    where there was no content. The order is such that an erasure that is cut short leaves nothing that a reader reads,
    and that copies of content/ elsewhere are unreadable from the first moment."""
    folder = Path(bundle)
    if layout.KEYS not in _core_files(folder):
        (folder / layout.KEYS).unlink(missing_ok=True)
        sync_directory(folder)
    for unfinished in folder.glob(f".{layout.CONTENT}-*"):
        shutil.rmtree(unfinished)
    doomed = folder / f".{layout.CONTENT}-{secrets.token_hex(8)}"
    try:
        os.rename(folder / layout.CONTENT, doomed)
    except FileNotFoundError:
        return False
    sync_directory(folder)
    shutil.rmtree(doomed)
    return True


def _core_files(folder: Path) -> Any:
    """Format 1.0 lists keys.json there, and has no key in it."""
    try:
        return plain.decode(read_inside(folder, layout.MANIFEST, most=layout.MOST_JSON_BYTES), "manifest")["files"]
    except (OSError, BundleError, KeyError, TypeError):
        return ()


def append_result(bundle: Path | str, result: Mapping[str, Any]) -> Path:
    """Add a replay's result to a bundle, durably; earlier results stay. BundleError where it cannot be written."""
    folder = Path(bundle) / layout.RESULTS
    draft = folder / f".{secrets.token_hex(8)}"
    try:
        write_durably(draft, plain.encode(result))
        path = linked(draft, folder)
        sync_directory(folder)
    except OSError as error:
        raise BundleError(
            f"no result can be added to {bundle}: {error.strerror}; copy it to a writable place"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return path


def linked(draft: Path, folder: Path) -> Path:
    """The next free number; two processes that come at once get one each, since a link never replaces."""
    number = len(list(folder.glob("*.json")))
    while True:
        number += 1
        try:
            os.link(draft, folder / f"{number:06d}.json")
        except FileExistsError:
            continue
        return folder / f"{number:06d}.json"


def results_of(bundle: Path | str) -> list[Any]:
    """All results, oldest first. BundleError where one of them is no plain file of JSON."""
    folder = Path(bundle)
    names = sorted(path.name for path in (folder / layout.RESULTS).glob("*.json"))[: layout.MOST_FILES]
    return [result_of(folder, f"{layout.RESULTS}/{name}") for name in names]


def result_of(folder: Path, path: str) -> Any:
    try:
        return plain.decode(read_inside(folder, path, most=layout.MOST_JSON_BYTES), str(folder / path))
    except FileNotFoundError:
        raise BundleError(f"{folder / path} cannot be read: a bundle holds plain files only") from None
