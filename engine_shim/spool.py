"""Append events to this process's spool file, for the collector to read."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from checkengine.guards.events import (
    ActionTaken,
    AuditCoverage,
    AuditJudged,
    BrakePulled,
    BundleWritten,
    Event,
    FindingRaised,
    GuardDisabled,
)
from checkengine.replay.spool_format import SpoolRecord, encode_line, file_name, parse_name

logger = logging.getLogger("checkengine.spool")

Sync = Literal["record", "second", "never"]
MOST_NAME = 512
"""Letters of a request's name that are told; the catalog keeps as many. Clients may choose it."""
SPOOLED = (FindingRaised, ActionTaken, GuardDisabled, BrakePulled, BundleWritten, AuditJudged, AuditCoverage)
"""Kinds of events to subscribe `SpoolWriter.handle` to; the others are for counters only."""


class SpoolWriter:
    """One process's spool in `directory`. Thread-safe; `append` and `handle` never raise: what cannot be written is
    counted in `dropped`, exactly, and its number is left out.

    `most_bytes` bounds this process's files together: while the collector is away the oldest records are kept and
    new ones dropped. `sync`: "record" survives a power cut record by record, "second" loses at most about a second
    of records to one, "never" leaves it to the system; none loses a record to the death of the process.
    Raises OSError where the directory cannot be made or written at the start.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        replica: str = "",
        rotate_bytes: int = 8 << 20,
        most_bytes: int = 256 << 20,
        sync: Sync = "second",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.boot = secrets.token_hex(8)
        self.dropped = 0
        self._directory = Path(directory)
        self._replica = replica
        self._rotate_bytes = rotate_bytes
        self._most_bytes = most_bytes
        self._sync = sync
        self._clock = clock
        self._synced = clock()
        self._number = 0
        self._index = 0
        self._size = 0
        self._full = False
        self._lock = threading.Lock()
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = self._open()

    def handle(self, event: Event) -> None:
        """Append an event; a listener of the event bus."""
        self.append(*as_record(event))

    def append(self, kind: str, when: float, request: str = "", data: Mapping[str, Any] | None = None) -> None:
        with self._lock:
            self._number += 1
            name = request[:MOST_NAME]
            record = SpoolRecord(self.boot, self._number, kind, when, self._replica, name, data or {})
            try:
                self._write(encode_line(record))
            except (OSError, ValueError) as error:
                self._drop(error)
            else:
                self._full = False

    def close(self) -> None:
        """What was appended is on the disk afterwards."""
        with self._lock:
            if self._descriptor >= 0:
                self._flush()
                os.close(self._descriptor)
                self._descriptor = -1

    def _write(self, line: bytes) -> None:
        if self._descriptor < 0 or (self._size and self._size + len(line) > self._rotate_bytes):
            self._rotate()
        if self._size + len(line) > self._most_bytes - self._other_bytes():
            raise ValueError(f"the spool holds its {self._most_bytes} bytes: is the collector running?")
        try:
            written = os.write(self._descriptor, line)
            if written != len(line):
                raise OSError("the disk is full")
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)
        self._sync_if_due()

    def _drop(self, error: Exception) -> None:
        self.dropped += 1
        if not self._full:
            logger.error("the spool in %s drops records: %s", self._directory, error)
        self._full = True

    def _open(self) -> int:
        path = self._directory / file_name(self.boot, self._index)
        draft = path.with_suffix(".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        # The lock tells the collector that the file may still grow, so it is held before the file has its name; it
        # lasts until the process is gone.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(draft, path)
        return descriptor

    def _rotate(self) -> None:
        self._index += 1
        fresh = self._open()
        if self._descriptor >= 0:
            self._flush()
            os.close(self._descriptor)
        self._descriptor, self._size = fresh, 0

    def _other_bytes(self) -> int:
        """In this process's older files, as far as the collector has not removed them."""
        if not self._index:
            return 0
        names = [path for path in self._directory.glob(f"{self.boot}-*") if parse_name(path.name)]
        return sum(size_of(path) for path in names if path.name != file_name(self.boot, self._index))

    def _sync_if_due(self) -> None:
        if self._sync == "record" or (self._sync == "second" and self._clock() - self._synced >= 1.0):
            self._flush()

    def _flush(self) -> None:
        if self._sync != "never":
            os.fdatasync(self._descriptor)
        self._synced = self._clock()


def size_of(path: Path) -> int:
    """0 for what the collector has removed meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def as_record(event: Event) -> tuple[str, float, str, dict[str, Any]]:
    """Kind, time, request and data; TypeError for an event that is not spooled."""
    match event:
        case FindingRaised():
            return "finding", event.time, event.finding.sequence, finding_data(event)
        case ActionTaken():
            action = event.action
            data = {
                "kind": str(action.kind),
                "finding": action.finding,
                "incident": action.incident,
                "keep_tokens": action.keep_tokens,
            }
            return "action", event.time, action.sequence, data
        case BundleWritten():
            return "bundle", event.time, "", bundle_data(event)
        case AuditJudged():
            data = {"incident": event.incident, "step": event.step, "verdict": event.verdict}
            return "audit", event.time, event.sequence, data
        case AuditCoverage():
            counters = asdict(event)
            return "audit_coverage", float(counters.pop("time")), "", counters
        case GuardDisabled():
            return "guard_disabled", event.time, "", {"guard": event.guard, "reason": event.reason}
        case BrakePulled():
            data = {"guard": event.guard, "stopped": event.stopped, "window_seconds": event.window_seconds}
            return "brake", event.time, "", data
        case _:
            raise TypeError(f"{type(event).__name__} is not spooled")


def finding_data(event: FindingRaised) -> dict[str, Any]:
    finding = event.finding
    return {
        "incident": event.incident,
        "primary": event.primary,
        "kind": finding.kind,
        "severity": int(finding.severity),
        "step": finding.step,
        "token": finding.token,
        "guard": finding.guard,
        "version": finding.version,
        "evidence": {key: as_number(value) for key, value in finding.evidence.items()},
    }


def bundle_data(event: BundleWritten) -> dict[str, Any]:
    told = asdict(event)
    told.pop("time")
    return told


def as_number(value: Any) -> float | int | bool:
    """Evidence may come as a numpy number."""
    number: float | int | bool = value.item() if hasattr(value, "item") else value
    return number
