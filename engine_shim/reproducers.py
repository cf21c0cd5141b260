"""What an incident keeps while content is off: the least call that still shows its fault, with made-up values."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from checkengine.engine_shim.background import BackgroundWorker
from checkengine.replay.capture import Capture

logger = logging.getLogger("checkengine.capture")

OUTCOMES = ("made", "none", "failed", "dropped")
PAUSE_SECONDS = 60.0
"""Between two of them: each takes seconds of a core from serving."""

Make = Callable[[Capture, Path], Path | None]
"""Of a capture and its bundle; None where there is no reproducer of it."""


class Reproducers:
    """Judges captures in memory and shrinks them, on a thread of its own. One waits at most, and holds KV pages until
    it is done. Nothing of it raises into the writer of bundles; every capture ends as one of

    made      a call bundle with made-up values lies beside the capture's
    none      no kernel is convicted by the finding's own steps, or the fault does not show without the content
    failed    judging or writing raised
    dropped   another one was being made, or had just been
    """

    def __init__(
        self,
        make: Make,
        *,
        told: Callable[[Capture, Path], None] = lambda capture, path: None,
        pause_seconds: float = PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`told` hears of each that was made, on this object's thread."""
        self.enabled = True
        self._make, self._told = make, told
        self._pause, self._clock = pause_seconds, clock
        self._next = float("-inf")
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._worker: BackgroundWorker[tuple[Capture, Path]] = BackgroundWorker(
            self._work, name="reproducer", waiting=1
        )

    def take(self, capture: Capture, path: Path) -> None:
        """Never waits. `path`: the capture's bundle."""
        if not self.enabled or not capture.findings:
            return
        now = self._clock()
        if now < self._next or not self._worker.put((capture, path)):
            self._count("dropped")
        else:
            self._next = now + self._pause

    @property
    def idle(self) -> bool:
        return self._worker.idle

    def outcomes(self) -> Mapping[str, int]:
        with self._lock:
            return {outcome: self._counts[outcome] for outcome in OUTCOMES}

    def close(self, timeout: float = 30.0) -> None:
        """End the one that is being made, if `timeout` seconds do; else it is lost."""
        self.enabled = False
        self._worker.close(timeout)

    def _work(self, waiting: tuple[Capture, Path]) -> None:
        capture, parent = waiting
        try:
            path = self._make(capture, parent)
            self._count("none" if path is None else "made")
            if path is not None:
                self._told(capture, path)
        except Exception:
            self._count("failed")
            logger.exception("no reproducer of incident %s: making it failed", capture.incident)

    def _count(self, outcome: str) -> None:
        with self._lock:
            self._counts[outcome] += 1
