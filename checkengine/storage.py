"""Where a process's events go: its spool, and the collector that brings all spools into the catalog."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from checkengine.config import Settings
from checkengine.dashboards.collector import Collector, LeaseTakenError, Totals
from checkengine.engine_shim.spool import SPOOLED, SpoolWriter
from checkengine.guards.bus import EventBus
from checkengine.replay.catalog import Catalog

logger = logging.getLogger("checkengine.storage")


def open_spool(settings: Settings, bus: EventBus, replica: str) -> SpoolWriter | None:
    """None where the spool is off or its directory cannot be written: that costs records, never the serving."""
    chosen = settings.spool
    if not chosen.enabled:
        return None
    try:
        spool = SpoolWriter(
            chosen.directory,
            replica=replica,
            rotate_bytes=chosen.rotate_bytes,
            most_bytes=chosen.most_bytes,
            sync=chosen.sync,
        )
    except OSError as error:
        logger.error("no spool: %s cannot be written (%s); check [spool] directory", chosen.directory, error.strerror)
        return None
    bus.subscribe(spool.handle, name="spool", kinds=SPOOLED)
    return spool


class CollectorThread:
    """The collector in a thread of this process; where another process holds the lease, that one collects."""

    def __init__(self, settings: Settings, open_catalog: Callable[[], Catalog] | None = None) -> None:
        url = settings.catalog.url
        self._collector: Collector | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._collector = Collector(settings.spool.directory, open_catalog or (lambda: Catalog.open(url)))
        except (LeaseTakenError, OSError) as error:
            logger.info("no collector here: %s", error)
            return
        seconds = settings.catalog.collect_seconds
        run = self._collector.run
        self._thread = threading.Thread(target=lambda: run(self._stop, seconds), name="checkengine-collector")
        self._thread.daemon = True
        self._thread.start()

    @property
    def totals(self) -> Totals | None:
        """None where another process collects."""
        return self._collector.totals if self._collector is not None else None

    def close(self) -> None:
        """One last round, then the lease is given back."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)
        if self._collector is not None:
            self._collector.close()
