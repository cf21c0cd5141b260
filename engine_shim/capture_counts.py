"""What became of the captures of one process, for metrics and for its log."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

OUTCOMES = ("written", "dropped", "duplicate", "skipped", "failed", "torn")


class CaptureCounts:
    """Thread-safe. Every trigger ends as one of

    written     a bundle on the disk
    dropped     the writer is behind, or the engine was closed before the steps after the trigger were over
    duplicate   the fault has enough captures for now
    skipped     the disk had just refused one: nothing was cloned
    failed      the disk refused it
    torn        (of an earlier process) it died while it wrote: the draft was swept away
    """

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._levels: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, outcome: str, count: int = 1) -> None:
        with self._lock:
            self._outcomes[outcome] += count

    def add_written(self, level: str) -> None:
        with self._lock:
            self._outcomes["written"] += 1
            self._levels[level] += 1

    def outcomes(self) -> Mapping[str, int]:
        with self._lock:
            return {outcome: self._outcomes[outcome] for outcome in OUTCOMES}

    def levels(self) -> Mapping[str, int]:
        """Written bundles by level."""
        with self._lock:
            return dict(self._levels)
