"""The access log: every reading, holding and erasing of content, each line chained to the one before.

A line's digest is keyed with the deployment key and covers the digest before it: who changes, removes or reorders lines
without the key is found out. Lines cut off at the end are found only against a copy of the last digest, which every
`checkengine bundles access` prints.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkengine.replay.bundle.layout import BundleError
from checkengine.replay.bundle.privacy import DeploymentKey, deployment_key, state_directory

BEGINNING = "0" * 32
TAIL_BYTES = 1 << 16
MOST_LETTERS = 1000
"""Of a purpose: a row must fit into the tail that is read to chain the next one, at twelve bytes a letter."""


@dataclass(frozen=True, slots=True)
class AccessLog:
    """`path` is appended to under a lock, so that processes that come at once leave one chain."""

    path: Path
    key: DeploymentKey

    @classmethod
    def of_this_deployment(cls) -> AccessLog:
        return cls(state_directory() / "access.jsonl", deployment_key())

    def add(self, action: str, bundle: str, purpose: str = "") -> None:
        """Durable when this returns. BundleError where it cannot be written: then what it logs must not happen."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(self._line(_last(file), action, bundle, purpose))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BundleError(
                f"the access log {self.path} cannot be written ({error.strerror}), so content is not opened: make room "
                "there or set CHECKENGINE_STATE to a writable folder"
            ) from None

    def read(self) -> list[dict[str, Any]]:
        """All rows, oldest first. BundleError at the first one that does not follow from the one before."""
        rows: list[dict[str, Any]] = []
        previous = BEGINNING
        for number, line in enumerate(self._lines(), 1):
            row = _parsed(line)
            if row is None or row.get("previous") != previous or row.get("digest") != self._digest(row):
                raise BundleError(f"{self.path}, line {number}: the chain is broken here: it was changed")
            previous = str(row["digest"])
            rows.append(row)
        return rows

    def _lines(self) -> list[bytes]:
        try:
            return self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []

    def _line(self, last: Mapping[str, Any] | None, action: str, bundle: str, purpose: str) -> bytes:
        row: dict[str, Any] = {
            "time": time.time(),
            "action": action,
            "bundle": bundle[:MOST_LETTERS],
            "by": _who(),
            "purpose": purpose[:MOST_LETTERS],
            "previous": last["digest"] if last else BEGINNING,
        }
        row["digest"] = self._digest(row)
        return json.dumps(row, sort_keys=True).encode("ascii") + b"\n"

    def _digest(self, row: Mapping[str, Any]) -> str:
        told = {name: value for name, value in row.items() if name != "digest"}
        return self.key.digest("access", json.dumps(told, sort_keys=True))


def _last(file: Any) -> dict[str, Any] | None:
    """The last whole line. What a crash left of a line is cut off: nothing was opened on its strength."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    lines = file.read().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        os.ftruncate(file.fileno(), size - len(lines.pop()))
        file.seek(0, os.SEEK_END)
    row = _parsed(lines[-1]) if lines else None
    return row if row and isinstance(row.get("digest"), str) else None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"
