"""From a capture to a bundle on disk, a row in the incident and an event."""

from __future__ import annotations

import logging
import time

from checkengine.guards.bus import EventBus
from checkengine.guards.events import BundleWritten
from checkengine.guards.incident import IncidentBook
from checkengine.replay.bundle import keep_newest, write_bundle
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
                'content capture is on ([capture] content = "full"): bundles in %s hold token ids and KV bytes',
                settings.directory,
            )

    def write(self, capture: Capture) -> None:
        path = write_bundle(capture, self._settings.directory, content=self._settings.content)
        incident = capture.incident or ""
        self._book.note_bundle(incident, path.name)
        logger.info("bundle %s of incident %s is written", path.name, incident)
        self._bus.publish(BundleWritten(path.name, incident, str(path), time.time()))
        for old in keep_newest(self._settings.directory, self._settings.maximum_bundles):
            logger.info("bundle %s is removed: more than %d", old.name, self._settings.maximum_bundles)
