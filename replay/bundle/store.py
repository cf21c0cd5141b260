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
from checkengine.replay.bundle.expiry import held
from checkengine.replay.bundle.files import sync_directory, write_durably
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
    """The whole bundle. The key and the marker go first, so that what is removed in part is neither read nor taken for
    whole."""
    folder = Path(bundle)
    (folder / layout.KEYS).unlink(missing_ok=True)
    (folder / layout.MARKER).unlink(missing_ok=True)
    sync_directory(folder)
    shutil.rmtree(folder, ignore_errors=True)


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
        return plain.decode((folder / layout.MANIFEST).read_bytes()[: layout.MOST_JSON_BYTES + 1], "manifest")["files"]
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
    """All results, oldest first."""
    paths = sorted((Path(bundle) / layout.RESULTS).glob("*.json"))
    return [plain.decode(path.read_bytes()[: layout.MOST_JSON_BYTES + 1], str(path)) for path in paths]
