"""From the spools of many processes to one catalog: each record once, whatever dies in between."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from checkengine.guards.errors import UserError, first_line
from checkengine.replay.catalog import Catalog, CatalogError
from checkengine.replay.catalog.ingest import forget_progress, ingest, save_progress
from checkengine.replay.catalog.queries import progress as progress_of
from checkengine.replay.spool_format import SUFFIX, Progress, SpoolRecord, open_ordinary, parse_name, read_records

logger = logging.getLogger("checkengine.collector")

BATCH = 1000
"""Records a transaction."""
AfterRound = Callable[[Catalog, float], None]


class LeaseTakenError(UserError):
    """Another collector serves this directory."""


class Lease:
    """Exactly one holder a directory; the system gives it back when its process dies."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "collector.lock"
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UserError(f"{self._path} cannot be opened: {error.strerror}; make room for it there") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise LeaseTakenError(f"another collector runs on {directory}: let it run, or stop it first") from None

    def release(self) -> None:
        os.close(self._descriptor)


@dataclass(slots=True)
class Collected:
    """What one round did."""

    records: int = 0
    fresh: int = 0
    """Rows that were new."""
    rejected: int = 0
    damaged: int = 0
    removed: int = 0
    """Spool files that were read to their end and deleted."""
    passed_over: int = 0
    """Files that are no ordinary ones, or that cannot be read: neither followed nor removed."""


@dataclass(slots=True)
class Totals:
    """Since the collector began, for metrics."""

    last_round: float = 0.0
    """Unix seconds at which a round last ended well; 0 before."""
    records: int = 0
    rejected: int = 0
    """Records that fit no row, and lines that were damaged."""
    failures: int = 0
    """Rounds in which the catalog was down or the disk failed."""


class Collector:
    """Reads every spool file of a directory into the catalog.

    A file's progress moves in the transaction that writes its records, and every row is keyed by boot id and number:
    a collector that is killed at any point neither loses a record nor writes one twice. A file is deleted when all
    of it is in the catalog and its process has gone on to another file or is gone.
    Raises LeaseTakenError where another collector runs on the directory.
    """

    def __init__(
        self,
        directory: Path | str,
        open_catalog: Callable[[], Catalog],
        *,
        clock: Callable[[], float] = time.time,
        after_round: Sequence[AfterRound] = (),
    ) -> None:
        """`open_catalog` is called until it gives a catalog, and again after the catalog failed. `after_round` are
        called with the catalog and the time once a round has ended well; where one fails, the round has failed."""
        self.totals = Totals()
        self._clock, self._after_round = clock, tuple(after_round)
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._open_catalog = open_catalog
        self._catalog: Catalog | None = None
        self._lease = Lease(self._directory)
        self._known: dict[str, Progress] = {}
        """By file, as the catalog has it: a file that has not grown costs no question."""
        self._down = False
        self._passed_over: set[str] = set()
        """Names of files that were told of."""

    def close(self) -> None:
        self._forget_catalog()
        self._lease.release()

    def run(self, stop: threading.Event, interval: float = 1.0) -> None:
        """Collect until `stop` is set, then once more."""
        while not stop.is_set():
            self.try_once()
            stop.wait(interval)
        self.try_once()

    def try_once(self) -> Collected | None:
        """One round, or None where the catalog is down or anything else fails: then the spools keep what they hold."""
        try:
            done = self.run_once()
        except (SQLAlchemyError, CatalogError, OSError) as error:
            self._failed("the catalog is down, the spools keep their records: %s", first_line(error))
            return None
        except Exception as error:
            self._failed(
                "a round failed, the spools keep their records: %s: %s", type(error).__name__, first_line(error)
            )
            return None
        if self._down:
            logger.info("the catalog is back")
        self._down = False
        return done

    def _failed(self, told: str, *words: str) -> None:
        if not self._down:
            logger.error(told, *words, exc_info=logger.isEnabledFor(logging.DEBUG))
        self._down = True
        self.totals.failures += 1
        self._forget_catalog()

    def run_once(self) -> Collected:
        """Read every file to its present end."""
        if self._catalog is None:
            self._catalog = self._open_catalog()
        done = Collected()
        for index, path in enumerate(files := self._files()):
            newest = index + 1 == len(files) or boot_of(files[index + 1]) != boot_of(path)
            try:
                self._collect(self._catalog, path, newest, done)
            except OSError as error:
                self._pass_over(path, error.strerror or str(error), done)
        for call in self._after_round:
            call(self._catalog, self._clock())
        self.totals.last_round = self._clock()
        self.totals.rejected += done.rejected + done.damaged
        return done

    def _files(self) -> list[Path]:
        """In the order of boot and index, which is the order of their names."""
        return sorted(path for path in self._directory.glob(f"*{SUFFIX}") if parse_name(path.name))

    def _pass_over(self, path: Path, why: str, done: Collected) -> None:
        """One file's trouble keeps no other from the catalog."""
        # What was read of it and not written is read again.
        self._known.pop(path.name, None)
        done.passed_over += 1
        self.totals.failures += 1
        if path.name not in self._passed_over:
            self._passed_over.add(path.name)
            logger.error("%s is passed over: %s", path, why)

    def _collect(self, catalog: Catalog, path: Path, newest: bool, done: Collected) -> None:
        # Asked before the last read: what a writer that is gone by now has written is there to be read.
        complete = not newest or not is_being_written(path)
        progress = self._progress(catalog, path.name)
        damaged = progress.damaged
        while records := self._batch(catalog, path, progress, done):
            if len(records) < BATCH:
                break
        done.damaged += progress.damaged - damaged
        if complete:
            self._remove(catalog, path, progress, done)

    def _progress(self, catalog: Catalog, name: str) -> Progress:
        if name not in self._known:
            with catalog.reading() as session:
                self._known[name] = progress_of(session, name)
        return self._known[name]

    def _remove(self, catalog: Catalog, path: Path, progress: Progress, done: Collected) -> None:
        if progress.offset < path.stat().st_size:
            logger.warning("%s ends in a torn record: its process was killed while it wrote it", path.name)
            done.damaged += 1
        path.unlink()
        done.removed += 1
        del self._known[path.name]
        with catalog.writing() as session:
            forget_progress(session, path.name)

    def _batch(self, catalog: Catalog, path: Path, progress: Progress, done: Collected) -> list[SpoolRecord]:
        before = progress.offset
        records = read_records(path, progress, BATCH)
        if progress.offset == before:
            return []
        with catalog.writing() as session:
            result = ingest(session, records)
            save_progress(session, path.name, progress)
        done.records += len(records)
        # At once: a round that fails later has brought them in all the same.
        self.totals.records += len(records)
        done.fresh += result.fresh
        done.rejected += result.rejected
        return records

    def _forget_catalog(self) -> None:
        # Whether the transaction that failed was committed, only the catalog knows.
        self._known.clear()
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None


def boot_of(path: Path) -> str:
    return path.name.partition("-")[0]


def is_being_written(path: Path) -> bool:
    """A writer holds a lock on its newest file for as long as it lives. OSError for what is no ordinary file."""
    descriptor = open_ordinary(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
