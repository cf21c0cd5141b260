"""From a capture to a bundle on disk, a row in the incident and an event."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from checkengine.guards.bus import EventBus
from checkengine.guards.events import BundleWritten
from checkengine.guards.incident import IncidentBook
from checkengine.replay.bundle import BundleError, BundleStore, PublicKey, collect, write_bundle
from checkengine.replay.capture import Capture
from checkengine.replay.settings import CaptureSettings

logger = logging.getLogger("checkengine.capture")


class BundleWriter:
    """Writes into one directory. What it raises, its caller logs: a full disk costs a bundle, never the serving."""

    def __init__(self, settings: CaptureSettings, bus: EventBus, book: IncidentBook) -> None:
        self._settings = settings
        self._bus = bus
        self._book = book
        if settings.content == "full":
            logger.warning(
                'content capture is on ([capture] content = "full"): bundles in %s hold token ids and KV bytes, '
                "encrypted and readable for %s",
                settings.directory,
                f"{settings.content_hours:g} h" if settings.content_hours else "ever",
            )

    def write(self, capture: Capture) -> None:
        chosen = self._settings
        path = write_bundle(
            capture,
            chosen.directory,
            content=chosen.content,
            recipients=[PublicKey.parse(text) for text in chosen.recipients],
            content_hours=chosen.content_hours or None,
        )
        incident = capture.incident or ""
        self._book.note_bundle(incident, path.name)
        logger.info("bundle %s of incident %s is written", path.name, incident)
        self._bus.publish(BundleWritten(path.name, incident, str(path), time.time()))
        self._collect()
        self._push(path)

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
