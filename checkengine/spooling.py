"""Where a process's events go: its spool. Without the collector, which a proxy need not carry."""

from __future__ import annotations

import logging

from checkengine.config import Settings
from checkengine.engine_shim.spool import SPOOLED, SpoolWriter
from checkengine.guards.bus import EventBus

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
