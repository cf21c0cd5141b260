"""Questions to the catalog."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.replay.catalog.models import (
    ActionRow,
    BundleRow,
    FindingRow,
    IncidentRow,
    NoticeRow,
    ReplayRow,
    SpoolRow,
)
from checkengine.replay.spool_format import Progress


def incidents(
    session: Session, *, kind: str | None = None, since: float | None = None, limit: int = 100, offset: int = 0
) -> list[IncidentRow]:
    """Newest first."""
    query = sa.select(IncidentRow).order_by(IncidentRow.last_seen.desc(), IncidentRow.id)
    if kind is not None:
        query = query.where(IncidentRow.kind == kind)
    if since is not None:
        query = query.where(IncidentRow.last_seen >= since)
    return list(session.scalars(query.limit(limit).offset(offset)))


def incident(session: Session, identifier: str) -> IncidentRow | None:
    return session.get(IncidentRow, identifier)


def findings(session: Session, incident_id: str, limit: int = 1000) -> list[FindingRow]:
    """Oldest first."""
    query = sa.select(FindingRow).where(FindingRow.incident_id == incident_id)
    return list(session.scalars(query.order_by(FindingRow.time, FindingRow.id).limit(limit)))


def actions(session: Session, incident_id: str, limit: int = 1000) -> list[ActionRow]:
    query = sa.select(ActionRow).where(ActionRow.incident_id == incident_id)
    return list(session.scalars(query.order_by(ActionRow.time, ActionRow.id).limit(limit)))


def bundles(session: Session, incident_id: str | None = None, limit: int = 100) -> list[BundleRow]:
    """Newest first."""
    query = sa.select(BundleRow).order_by(BundleRow.time.desc(), BundleRow.id)
    if incident_id is not None:
        query = query.where(BundleRow.incident_id == incident_id)
    return list(session.scalars(query.limit(limit)))


def replays(session: Session, bundle: str, limit: int = 100) -> list[ReplayRow]:
    """Newest first."""
    query = sa.select(ReplayRow).where(ReplayRow.bundle == bundle)
    return list(session.scalars(query.order_by(ReplayRow.time.desc(), ReplayRow.id).limit(limit)))


def notices(session: Session, kind: str | None = None, limit: int = 100) -> list[NoticeRow]:
    """Newest first."""
    query = sa.select(NoticeRow).order_by(NoticeRow.time.desc(), NoticeRow.id)
    if kind is not None:
        query = query.where(NoticeRow.kind == kind)
    return list(session.scalars(query.limit(limit)))


def audit_coverage(session: Session) -> list[NoticeRow]:
    """The last of each process: its counters since it began."""
    kind = NoticeRow.kind == "audit_coverage"
    newest = sa.select(NoticeRow.boot, sa.func.max(NoticeRow.number).label("number")).where(kind)
    last = newest.group_by(NoticeRow.boot).subquery()
    same = sa.and_(NoticeRow.boot == last.c.boot, NoticeRow.number == last.c.number)
    return list(session.scalars(sa.select(NoticeRow).join(last, same).order_by(NoticeRow.replica, NoticeRow.boot)))


def audit_convictions(session: Session, limit: int = 100) -> list[NoticeRow]:
    """Audits that opened an incident; newest first."""
    incident = NoticeRow.data["incident"].as_string()
    query = sa.select(NoticeRow).where(NoticeRow.kind == "audit", incident.is_not(None))
    return list(session.scalars(query.order_by(NoticeRow.time.desc(), NoticeRow.id).limit(limit)))


def progress(session: Session, file: str) -> Progress:
    row = session.get(SpoolRow, file)
    return Progress(row.offset, row.damaged) if row else Progress()


def acknowledge(session: Session, incident_id: str, time: float) -> bool:
    """False where there is no such incident."""
    row = session.get(IncidentRow, incident_id)
    if row is not None:
        row.acknowledged = time
    return row is not None
