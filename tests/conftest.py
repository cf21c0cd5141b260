"""Databases for whoever asks: SQLite, and a real PostgreSQL that one process of the test run starts for itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from checkengine.benchmarks.postgres import PostgresServer
from checkengine.replay.catalog import Catalog

KINDS = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Fails, and does not skip, where there is no PostgreSQL: half of the storage would go untested."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog without rows, to be copied: migrations take longer than most tests."""
    path = tmp_path_factory.mktemp("catalog") / "catalog.db"
    Catalog.open(path).close()
    return path


@pytest.fixture(params=KINDS)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database of either kind without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/catalog.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.emptied()


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a catalog of either kind without rows."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_file"), tmp_path / "catalog.db")
        return f"sqlite:///{tmp_path}/catalog.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return without_rows(server)


def without_rows(server: PostgresServer) -> str:
    engine = sa.create_engine(server.url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        tables = [name for name in sa.inspect(connection).get_table_names() if name != "alembic_version"]
        if tables:
            connection.exec_driver_sql(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")
    return server.url


@pytest.fixture
def any_catalog(database_url: str) -> Iterator[Catalog]:
    catalog = Catalog.open(database_url)
    yield catalog
    catalog.close()


@pytest.fixture
def open_catalog(database_url: str) -> Callable[[], Catalog]:
    return lambda: Catalog.open(database_url)
