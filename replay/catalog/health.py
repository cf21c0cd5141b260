"""Is the catalog whole? Its schema, its file, and the bundles that it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from checkengine.replay.bundle.store import bundles_in
from checkengine.replay.catalog.catalog import Catalog, migration_folder
from checkengine.replay.catalog.fleet import ReplicaRow
from checkengine.replay.catalog.models import Base, BundleRow
from checkengine.replay.catalog.people import UserRow

MOST_NAMED = 20
EVERY_MODULE = (BundleRow, ReplicaRow, UserRow)
"""One table of each module, so that the metadata knows all tables."""


@dataclass(slots=True)
class Health:
    revision: str = ""
    newest: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """A sentence each."""
    notes: list[str] = field(default_factory=list)
    """What is no fault: a bundle of another host, one that no row names yet."""


def examine(catalog: Catalog, directories: Iterable[Path] = ()) -> Health:
    """`directories` hold this machine's bundles. Reads every page of an SQLite file."""
    health = Health(newest=newest_revision())
    with catalog.engine.connect() as connection:
        health.revision = MigrationContext.configure(connection).get_current_revision() or ""
    if health.revision != health.newest:
        words = f"the schema is at revision {health.revision or 'none'}, not {health.newest}"
        health.problems.append(f"{words}: run checkengine db upgrade")
        return health
    health.problems += damage(catalog)
    if health.problems:
        return health
    with catalog.reading() as session:
        for table in Base.metadata.sorted_tables:
            health.rows[table.name] = int(session.scalar(sa.select(sa.func.count()).select_from(table)) or 0)
    compare_bundles(catalog, [Path(directory) for directory in directories], health)
    return health


def newest_revision() -> str:
    return ScriptDirectory(migration_folder()).get_current_head() or ""


def damage(catalog: Catalog) -> list[str]:
    if catalog.engine.dialect.name != "sqlite":
        return []
    with catalog.engine.connect() as connection:
        found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
        if found != ["ok"]:
            return [f"the file is damaged: {words}; restore it from a backup" for words in found]
        dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    return [f"a row of {row[0]} refers to a row of {row[2]} that is not there" for row in dangling[:MOST_NAMED]]


def compare_bundles(catalog: Catalog, directories: list[Path], health: Health) -> None:
    """Rows without a bundle, and bundles without a row, as far as they lie in `directories`."""
    with catalog.reading() as session:
        living = sa.select(BundleRow.id, BundleRow.path).where(BundleRow.erased.is_(None))
        named = {str(row.id): Path(row.path) for row in session.execute(living)}
    roots = [directory.resolve() for directory in directories]
    here = {name: path for name, path in named.items() if any(path.resolve().is_relative_to(root) for root in roots)}
    missing = sorted(name for name, path in here.items() if not path.exists())
    unknown = sorted(
        path.name for root in roots if root.is_dir() for path in bundles_in(root) if path.name not in named
    )
    tell(health.notes, missing, "named in the catalog and no longer on the disk (removed by retention)")
    tell(health.notes, unknown, "on the disk and not in the catalog (not collected yet, or written by hand)")


def tell(words: list[str], names: list[str], what: str) -> None:
    if names:
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        words.append(f"{len(names)} bundles are {what}: {', '.join(names[:MOST_NAMED])}{more}")
