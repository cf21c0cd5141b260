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
from checkengine.replay.bundle.files import sync_directory, write_durably
from checkengine.replay.bundle.layout import BundleError


def bundles_in(directory: Path | str) -> list[Path]:
    """Folders with a marker, oldest first (their names begin with the time); none where there is no directory."""
    found = [path.parent for path in Path(directory).glob(f"*/{layout.MARKER}")]
    return sorted(path for path in found if not path.name.startswith("."))


def keep_newest(directory: Path | str, count: int) -> list[Path]:
    """Remove the oldest bundles until `count` are left; returns what was removed.

    The marker goes first, so that a bundle which is removed in part is never taken for whole.
    """
    whole = bundles_in(directory)
    surplus = whole[: max(0, len(whole) - count)]
    for path in surplus:
        (path / layout.MARKER).unlink(missing_ok=True)
        sync_directory(path)
        shutil.rmtree(path, ignore_errors=True)
    return surplus


def erase_content(bundle: Path | str) -> bool:
    """Remove token ids and KV bytes; what is left can still be opened, shown and verified. False where there was no
    content. The rename comes first: an erasure that is cut short leaves nothing that a reader reads."""
    folder = Path(bundle)
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
