"""What the catalog forgets, and when. Held incidents, and those with a held bundle, are never forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from checkengine.replay.bundle import held
from checkengine.replay.catalog.base import Base
from checkengine.replay.catalog.catalog import Catalog
from checkengine.replay.catalog.fleet import JobRow, ReplicaRow, RequestRow
from checkengine.replay.catalog.models import (
    ActionRow,
    ActivityRow,
    BundleRow,
    CauseRow,
    FindingRow,
    IncidentRow,
    NoticeRow,
    ReplayRow,
)
from checkengine.replay.catalog.people import AuditRow, CommentRow, SessionRow
from checkengine.replay.settings import CatalogSettings

DAY = 86400.0
CHUNK = 500
"""Rows, or incidents with all their rows, that one transaction deletes: writers wait no longer than for that."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Days; each None keeps for ever."""

    requests: float | None = 7.0
    notices: float | None = 90.0
    incidents: float | None = 365.0
    """With findings, actions, comments and the rows of their bundles; counted from the last finding."""
    audit_log: float | None = 730.0
    gone_replicas: float | None = 30.0

    @classmethod
    def of(cls, settings: CatalogSettings) -> Policy:
        """0 in the settings is for ever."""
        return cls(
            settings.keep_requests_days or None,
            settings.keep_notices_days or None,
            settings.keep_incidents_days or None,
            settings.keep_audit_days or None,
            settings.keep_replicas_days or None,
        )


def expire(catalog: Catalog, policy: Policy, now: float) -> dict[str, int]:
    """Delete what is too old, in short transactions; returns how many rows of each table went."""
    gone: dict[str, int] = {}
    for table, column, days in (
        (RequestRow, RequestRow.time, policy.requests),
        (NoticeRow, NoticeRow.time, policy.notices),
        (AuditRow, AuditRow.time, policy.audit_log),
        (ReplicaRow, ReplicaRow.last_seen, policy.gone_replicas),
        (ActivityRow, ActivityRow.bucket, policy.incidents),
        (ReplayRow, ReplayRow.time, policy.incidents),
        (JobRow, JobRow.created, policy.incidents),
    ):
        if days is not None:
            gone[table.__tablename__] = delete_older(catalog, table, column, now - days * DAY)
    gone["sessions"] = delete_older(catalog, SessionRow, SessionRow.expires, now)
    if policy.incidents is not None:
        before = now - policy.incidents * DAY
        note_holds(catalog, before)
        expire_incidents(catalog, before, gone)
    return {name: count for name, count in gone.items() if count}


def delete_older(catalog: Catalog, table: type[Base], column: Any, before: float) -> int:
    total = 0
    keys = list(sa.inspect(table).primary_key)
    while True:
        with catalog.writing() as session:
            chosen = [tuple(row) for row in session.execute(sa.select(*keys).where(column < before).limit(CHUNK))]
            total += delete(session, table, sa.tuple_(*keys).in_(chosen)) if chosen else 0
        if len(chosen) < CHUNK:
            return total


def note_holds(catalog: Catalog, before: float) -> None:
    """A bundle may be held on its disk (`checkengine bundles hold`) without its row knowing."""
    old = sa.select(IncidentRow.id).where(IncidentRow.last_seen < before)
    unknown = sa.select(BundleRow.id, BundleRow.path).where(BundleRow.incident_id.in_(old), BundleRow.held.is_(False))
    with catalog.reading() as session:
        found = [str(row.id) for row in session.execute(unknown) if is_held(Path(row.path))]
    if found:
        with catalog.writing() as session:
            session.execute(sa.update(BundleRow).where(BundleRow.id.in_(found)).values(held=True))


def is_held(path: Path) -> bool:
    return path.is_dir() and held(path)


def expire_incidents(catalog: Catalog, before: float, gone: dict[str, int]) -> None:
    kept = sa.select(BundleRow.id).where(BundleRow.incident_id == IncidentRow.id, BundleRow.held.is_(True))
    old = sa.select(IncidentRow.id).where(IncidentRow.last_seen < before, IncidentRow.held.is_(False), ~kept.exists())
    while True:
        with catalog.writing() as session:
            chosen = list(session.scalars(old.limit(CHUNK)))
            for table in (FindingRow, ActionRow, CommentRow, BundleRow):
                add(gone, table, delete(session, table, table.incident_id.in_(chosen)))
            add(gone, IncidentRow, delete(session, IncidentRow, IncidentRow.id.in_(chosen)))
        if len(chosen) < CHUNK:
            break
    with catalog.writing() as session:
        used = sa.select(IncidentRow.id).where(IncidentRow.cause_id == CauseRow.id)
        counted = sa.select(ActivityRow.bucket).where(ActivityRow.cause_id == CauseRow.id)
        add(gone, CauseRow, delete(session, CauseRow, ~used.exists(), ~counted.exists()))


def delete(session: Any, table: type[Base], *conditions: Any) -> int:
    result = session.execute(sa.delete(table).where(*conditions).execution_options(synchronize_session=False))
    return int(result.rowcount)


def add(gone: dict[str, int], table: type[Base], count: int) -> None:
    gone[table.__tablename__] = gone.get(table.__tablename__, 0) + count


def tidy(catalog: Catalog) -> None:
    """Give room back and renew the statistics that plans are made by. Takes a copy's worth of disk on SQLite."""
    statements: Sequence[str] = ("VACUUM", "ANALYZE")
    if catalog.engine.dialect.name == "sqlite":
        statements = ("VACUUM", "ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)")
    driver = catalog.engine.raw_connection()
    try:
        connection = driver.driver_connection
        assert connection is not None
        if catalog.engine.dialect.name == "postgresql":
            connection.autocommit = True
        for statement in statements:
            connection.execute(statement)
    finally:
        # Not given back to the pool: it was taken out of transactions.
        driver.invalidate()
