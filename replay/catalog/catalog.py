"""Open the catalog: SQLite by default, PostgreSQL where a URL says so; migrated when opened."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from checkengine.guards.errors import UserError, first_line

BUSY_SECONDS = 10.0
SETTING = "[catalog] url"
BACKENDS = ("sqlite", "postgresql")
EXAMPLE = "postgresql://user@host/database"
MIGRATION_LOCK = 0x0C4EC4E6
"""Of PostgreSQL's advisory locks."""


class CatalogError(UserError):
    """The catalog cannot be opened; the message says what, where and what to do."""


class Catalog:
    """Sessions on one database. Safe to share between threads; a process that forks opens its own."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._writing = engine.execution_options(checkengine_begin="IMMEDIATE")

    @classmethod
    def open(cls, url: str | Path, *, upgraded: bool = True, named: str = SETTING) -> Catalog:
        """`url` is an SQLAlchemy URL or the path of an SQLite file. Brings the tables up to date (but for `upgraded`
        false, which makes no file either); several processes may open at once. CatalogError where it cannot; `named`
        is where the message sends the reader."""
        location = location_of(url, named)
        if not upgraded and is_absent(location):
            raise CatalogError(f"there is no catalog at {location.database}; check {named}")
        try:
            engine = make_engine(location)
            with opening(location):
                if upgraded:
                    upgrade(engine)
                else:
                    engine.connect().close()
        except ImportError as error:
            raise CatalogError(
                f"a catalog on {location.get_backend_name()} needs its driver ({error}): "
                "pip install 'checkengine[postgres]'"
            ) from error
        except (sa.exc.SQLAlchemyError, OSError) as error:
            words = first_line(error)
            raise CatalogError(
                f"the catalog {location.render_as_string()} cannot be opened ({words}); check {named}"
            ) from error
        return cls(engine)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction: committed at the end, rolled back where the block raises."""
        with Session(self._writing, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        self.engine.dispose()


def location_of(url: str | Path, named: str) -> sa.URL:
    """`postgres://` and `postgresql://` mean the driver that checkengine brings along."""
    if not str(url):
        raise CatalogError(f"the catalog's name is empty; write {named} as {EXAMPLE}, or the path of an SQLite file")
    if not isinstance(url, str) or "://" not in url:
        return sa.URL.create("sqlite", database=str(url))
    try:
        location = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise CatalogError(
            f"the catalog's URL cannot be read; write {named} as {EXAMPLE}, or the path of an SQLite file"
        ) from None
    if location.drivername in ("postgres", "postgresql"):
        return location.set(drivername="postgresql+psycopg")
    if location.get_backend_name() not in BACKENDS:
        raise CatalogError(
            f"{location.drivername} is no database for a catalog; write {named} as {EXAMPLE}, or the path of an SQLite "
            "file"
        )
    return location


def is_file(location: sa.URL) -> bool:
    return location.get_backend_name() == "sqlite" and location.database not in (None, "", ":memory:")


def is_absent(location: sa.URL) -> bool:
    path = str(location.database)
    return is_file(location) and not path.startswith("file:") and not Path(path).exists()


def make_engine(location: sa.URL) -> sa.Engine:
    if location.get_backend_name() != "sqlite":
        return sa.create_engine(location, pool_pre_ping=True)
    if location.database in (None, "", ":memory:"):
        engine = sa.create_engine(location, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        Path(str(location.database)).parent.mkdir(parents=True, exist_ok=True)
        engine = sa.create_engine(location, connect_args={"timeout": BUSY_SECONDS})
    sa.event.listen(engine, "connect", prepare_sqlite)
    sa.event.listen(engine, "begin", begin_sqlite)
    return engine


def prepare_sqlite(connection: Any, _: object) -> None:
    # The driver would begin transactions late and never around DDL; `begin_sqlite` does it instead.
    connection.isolation_level = None
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def begin_sqlite(connection: sa.Connection) -> None:
    # A deferred transaction that turns from reading to writing fails at once, whatever the busy timeout.
    mode = connection.get_execution_options().get("checkengine_begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")


@contextmanager
def opening(location: sa.URL) -> Iterator[None]:
    """One opener at a time switches an SQLite file to WAL and migrates it."""
    if not is_file(location):
        yield
        return
    descriptor = os.open(f"{location.database}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_absent(location):
            # It names people and requests: for its owner, and SQLite gives its other files the same mode.
            os.close(os.open(str(location.database), os.O_RDWR | os.O_CREAT, 0o600))
        yield
    finally:
        os.close(descriptor)


def upgrade(engine: sa.Engine) -> None:
    migrate(engine, "head")


def migration_folder() -> Path:
    return Path(__file__).parent / "migrations"


def migrate(engine: sa.Engine, revision: str) -> None:
    """Up or down to a revision: "head", "base", or one of migrations/versions."""
    config = Config()
    config.set_main_option("script_location", str(migration_folder()).replace("%", "%%"))
    with engine.execution_options(checkengine_begin="IMMEDIATE").begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
        config.attributes["connection"] = connection
        downwards = is_behind(revision, MigrationContext.configure(connection).get_current_revision())
        (command.downgrade if downwards else command.upgrade)(config, revision)


def is_behind(revision: str, current: str | None) -> bool:
    """Revisions are numbers of four digits."""
    return revision == "base" or (revision.isdigit() and current is not None and revision < current)
