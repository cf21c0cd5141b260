"""Folders that are not bundles yet, or no longer: whoever makes one may die at any time, and the next one sweeps."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from checkengine.replay.bundle.files import sync_directory
from checkengine.replay.bundle.layout import LEFTOVER_PREFIX

ARRIVING_PREFIX = ".arriving-"
"""Of a bundle that is imported or fetched. Not a capture: one that is torn is no capture lost."""
SWEPT_PREFIX = ".swept-"
FRESH_SECONDS = 10.0
LEFTOVER_SECONDS = 3600.0
"""Where a file system knows no locks: a living writer touches its draft every few seconds at most."""


@contextlib.contextmanager
def held(draft: Path) -> Iterator[None]:
    """A lock on the draft while it is written: the system lets go of it when the writer dies, however it dies."""
    descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # A file system without locks: then age tells.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def arriving(target: Path) -> Iterator[Path]:
    """A draft beside `target` that takes its name, durably, when the block ends well; else nothing is left.

    FileExistsError where another process was quicker.
    """
    directory = target.parent
    draft = directory / f"{ARRIVING_PREFIX}{secrets.token_hex(8)}"
    made = missing(directory)
    try:
        draft.mkdir(parents=True)
        with held(draft):
            remove_leftovers(directory)
            yield draft
            for folder in {path.parent for path in draft.rglob("*")} | {draft}:
                sync_directory(folder)
            rename_new(draft, target)
            sync_directory(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        remove_empty(made)


def rename_new(draft: Path, target: Path) -> None:
    try:
        os.rename(draft, target)
    except OSError:
        if target.exists():
            raise FileExistsError(f"{target} is there already") from None
        raise


def missing(directory: Path) -> list[Path]:
    """The folders that making this one will make, the innermost first."""
    return [folder for folder in (directory, *directory.parents) if not folder.exists()]


def remove_empty(folders: Iterable[Path]) -> None:
    """What was made for a bundle that did not come."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def remove_leftovers(directory: Path, fresh: float = FRESH_SECONDS) -> int:
    """Of writers that died; how many captures were torn. A draft that was made less than `fresh` seconds ago may not be
    locked yet."""
    removed = sum(sweep(draft, fresh) for draft in directory.glob(f"{LEFTOVER_PREFIX}*"))
    for draft in directory.glob(f"{ARRIVING_PREFIX}*"):
        sweep(draft, fresh)
    for swept in directory.glob(f"{SWEPT_PREFIX}*"):
        shutil.rmtree(swept, ignore_errors=True)
    return removed


def sweep(draft: Path, fresh: float) -> bool:
    """Out of the way, if its writer is dead. Of two that sweep at once one succeeds."""
    with contextlib.suppress(OSError):
        if is_abandoned(draft, time.time() - draft.stat().st_mtime, fresh):
            set_aside(draft)
            return True
    return False


def set_aside(folder: Path) -> Path:
    """From one moment to the next it is no bundle any more; who dies before it is removed leaves that to a sweep."""
    swept = folder.with_name(f"{SWEPT_PREFIX}{secrets.token_hex(8)}")
    os.rename(folder, swept)
    return swept


def is_abandoned(draft: Path, age: float, fresh: float) -> bool:
    if age < fresh:
        return False
    descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return age > LEFTOVER_SECONDS
    finally:
        os.close(descriptor)
    return True
