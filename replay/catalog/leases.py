"""Leases on a catalog: of all processes that use it, one holds a name; the system gives it back when that one dies."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable

import sqlalchemy as sa

from checkengine.replay.catalog.catalog import Catalog

FAMILY = 0x0C4E
"""First of the two numbers of our advisory locks in PostgreSQL."""


class Lease:
    """`held` asks for it and says whether this process has it; ask again at each use, since a server may restart."""

    def __init__(self, ask: Callable[[], bool], release: Callable[[], None]) -> None:
        self._ask, self._release = ask, release

    @classmethod
    def of(cls, catalog: Catalog, name: str) -> Lease:
        if catalog.engine.dialect.name == "postgresql":
            advisory = _Advisory(catalog.engine.url, name)
            return cls(advisory.ask, advisory.release)
        database = catalog.engine.url.database
        if database in (None, "", ":memory:"):
            return cls(lambda: True, lambda: None)
        file = _File(f"{database}.{name}.lock")
        return cls(file.ask, file.release)

    def held(self) -> bool:
        return self._ask()

    def release(self) -> None:
        self._release()


class _File:
    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def ask(self) -> bool:
        if self._descriptor >= 0:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _Advisory:
    """On a connection of its own, which holds the lock for as long as it lives."""

    def __init__(self, url: sa.URL, name: str) -> None:
        self._engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        self._number = zlib.crc32(name.encode()) & 0x7FFFFFFF
        self._connection: sa.Connection | None = None

    def ask(self) -> bool:
        if self._connection is not None and self._lives(self._connection):
            return True
        self.release()
        connection = self._engine.connect()
        if connection.scalar(sa.select(sa.func.pg_try_advisory_lock(FAMILY, self._number))):
            self._connection = connection
            return True
        connection.close()
        return False

    def _lives(self, connection: sa.Connection) -> bool:
        try:
            return connection.scalar(sa.select(1)) == 1
        except sa.exc.SQLAlchemyError:
            return False

    def release(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
