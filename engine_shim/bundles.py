"""From a capture to a bundle on disk, a row in the incident and an event."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from checkengine.engine_shim.capture_counts import CaptureCounts
from checkengine.guards.bus import EventBus
from checkengine.guards.events import BundleWritten
from checkengine.guards.incident import IncidentBook
from checkengine.replay.bundle import BundleError, BundleStore, PublicKey, collect, layout, write_bundle
from checkengine.replay.bundle.draft import remove_leftovers
from checkengine.replay.capture import Capture
from checkengine.replay.settings import CaptureSettings

logger = logging.getLogger("checkengine.capture")

PAUSE_SECONDS = 30.0
"""After the disk refused a bundle: meanwhile nothing is cloned for it."""
ALARM_SECONDS = 300.0
"""Between two log lines about a disk that goes on refusing."""


class BundleWriter:
    """Writes into one directory. `write` never raises: a full disk costs a bundle, never the serving."""

    def __init__(
        self,
        settings: CaptureSettings,
        bus: EventBus,
        book: IncidentBook,
        counts: CaptureCounts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = counts or CaptureCounts()
        self.after: Callable[[Capture, Path], None] | None = None
        """Is handed every capture that was written, while it is still in memory."""
        self._settings = settings
        self._bus = bus
        self._book = book
        self._clock = clock
        self._paused_until = float("-inf")
        self._alarmed = float("-inf")
        self._since_alarm = 0
        if settings.content == "full":
            logger.warning(
                'content capture is on ([capture] content = "full"): bundles in %s hold token ids and KV bytes, '
                "encrypted and readable for %s",
                settings.directory,
                f"{settings.content_hours:g} h" if settings.content_hours else "ever",
            )

    def ready(self) -> bool:
        """False for a while after the disk refused a bundle."""
        return self._clock() >= self._paused_until

    def write(self, capture: Capture) -> bool:
        """False where there is no bundle: counted, and told in one log line a while."""
        chosen = self._settings
        self.sweep()
        try:
            path = write_bundle(
                capture,
                chosen.directory,
                content=chosen.content,
                recipients=[PublicKey.parse(text) for text in chosen.recipients],
                content_hours=chosen.content_hours or None,
            )
        except Exception as error:
            self.counts.add("failed")
            if is_of_the_disk(error):
                self._pause(capture, error)
            else:
                logger.exception("the bundle of incident %s could not be written", capture.incident)
            return False
        self.counts.add_written(capture.level)
        self.tell(capture, path)
        self._hand_on(capture, path)
        return True

    def sweep(self) -> None:
        """Drafts of writers that died are no bundles: they go, and count."""
        with contextlib.suppress(OSError):
            if torn := remove_leftovers(self._settings.directory):
                self.counts.add("torn", torn)
                logger.warning("%d bundles were torn when their writer died, and are removed", torn)

    def _pause(self, capture: Capture, error: Exception) -> None:
        """The disk is full, read-only or gone; it may come back."""
        now = self._clock()
        self._paused_until = now + PAUSE_SECONDS
        self._since_alarm += 1
        if now - self._alarmed >= ALARM_SECONDS:
            logger.error(
                "the bundle of incident %s could not be written (%d since the last such line), captures pause for "
                "%.0f s each time: %s",
                capture.incident,
                self._since_alarm,
                PAUSE_SECONDS,
                error,
            )
            self._alarmed, self._since_alarm = now, 0

    def _hand_on(self, capture: Capture, path: Path) -> None:
        if self.after is None:
            return
        try:
            self.after(capture, path)
        except Exception:
            logger.exception("bundle %s is written, but what was to be made of it failed", path.name)

    def tell(self, capture: Capture, path: Path) -> None:
        """Of a bundle of this capture that is on the disk already: what fails here costs the telling."""
        incident = capture.incident or ""
        try:
            self._book.note_bundle(incident, path.name)
            logger.info("bundle %s of incident %s is written", path.name, incident or "(none)")
            self._bus.publish(self._written(incident, path))
            self._collect()
            self._push(path)
        except Exception:
            logger.exception("bundle %s is written, but what comes after it failed", path.name)

    def _written(self, incident: str, path: Path) -> BundleWritten:
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        hours, full = self._settings.content_hours, (path / layout.CONTENT).is_dir()
        now = time.time()
        ends = now + 3600 * hours if full and hours else None
        return BundleWritten(path.name, incident, str(path), now, size, "full" if full else "none", ends)

    def _push(self, path: Path) -> None:
        """The local bundle stays, so a store that is down costs a copy."""
        if not self._settings.store:
            return
        try:
            logger.info("bundle %s is copied to %s", path.name, BundleStore(self._settings.store).push(path))
        except (BundleError, ImportError) as error:
            logger.error("bundle %s is not copied: %s", path.name, error)

    def _collect(self) -> None:
        done = collect(self._settings.directory, self._settings.maximum_bundles)
        for name in done.erased:
            logger.info("content of bundle %s is erased: its time is over", name)
        for name in done.removed:
            logger.info("bundle %s is removed: more than %d", name, self._settings.maximum_bundles)


def is_of_the_disk(error: Exception) -> bool:
    """Also where it was told in other words."""
    return any(isinstance(each, OSError) for each in (error, error.__cause__, error.__context__))
