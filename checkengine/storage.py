"""Where a process's events go: its spool, and the collector that brings all spools into the catalog."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import sqlalchemy as sa

from checkengine.config import Settings
from checkengine.dashboards.collector import AfterRound, Collector, LeaseTakenError, Totals
from checkengine.dashboards.fleet_watch import FleetWatch
from checkengine.dashboards.order_files import OrderFiles
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.marks import lift_expired_mutes
from checkengine.replay.catalog.people import MuteRow
from checkengine.replay.catalog.retention import Policy, expire
from checkengine.spooling import open_spool as open_spool

logger = logging.getLogger("checkengine.storage")

RETENTION_SECONDS = 3600.0


def make_collector(
    settings: Settings, open_catalog: Callable[[], Catalog] | None = None, watch: FleetWatch | None = None
) -> Collector:
    """With what belongs to its rounds: orders for the engines, mutes that run out, retention, and a watch over the
    fleet. Raises LeaseTakenError, OSError."""
    url = settings.catalog.url
    directory = settings.spool.directory
    after: list[AfterRound] = [OrderFiles(directory), lift_mutes, Retention(Policy.of(settings.catalog))]
    after += [watch] if watch is not None else []
    return Collector(directory, open_catalog or (lambda: Catalog.open(url)), after_round=after)


def lift_mutes(catalog: Catalog, now: float) -> None:
    with catalog.reading() as session:
        due = bool(
            session.scalar(sa.select(MuteRow.id).where(MuteRow.lifted.is_(None), MuteRow.expires <= now).limit(1))
        )
    if due:
        with catalog.writing() as session:
            lift_expired_mutes(session, now)


class Retention:
    """Once an hour, after a round."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._next = 0.0

    def __call__(self, catalog: Catalog, now: float) -> None:
        if now < self._next:
            return
        self._next = now + RETENTION_SECONDS
        if gone := expire(catalog, self._policy, now):
            logger.info("forgotten: %s", ", ".join(f"{count} of {table}" for table, count in gone.items()))


class CollectorThread:
    """The collector in a thread of this process; where another process holds the lease, that one collects."""

    def __init__(
        self,
        settings: Settings,
        open_catalog: Callable[[], Catalog] | None = None,
        watch: FleetWatch | None = None,
    ) -> None:
        self.watch = watch
        self._collector: Collector | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._collector = make_collector(settings, open_catalog, watch)
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
        if self.watch is not None:
            self.watch.close()
