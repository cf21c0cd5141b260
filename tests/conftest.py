"""Databases for whoever asks: SQLite, and a real PostgreSQL that one process of the test run starts for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkengine.benchmarks.postgres import PostgresServer
from checkengine.replay.catalog import Catalog


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Fails, and does not skip, where there is no PostgreSQL: half of the storage would go untested."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/catalog.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.emptied()


@pytest.fixture
def any_catalog(database_url: str) -> Iterator[Catalog]:
    catalog = Catalog.open(database_url)
    yield catalog
    catalog.close()


@pytest.fixture
def open_catalog(database_url: str) -> Callable[[], Catalog]:
    return lambda: Catalog.open(database_url)
