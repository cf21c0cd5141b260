"""Counts over time, for sparklines and for gauges."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.replay.catalog.incident_rows import BUCKET_SECONDS
from checkengine.replay.catalog.models import ActivityRow, CauseRow, IncidentRow


def activity(
    session: Session, *, since: float, until: float, points: int = 48, by: str = "guard"
) -> dict[str, list[int]]:
    """Primary findings in each of `points` equal spans, by one of a cause's columns (guard, kind, replica, model…)."""
    return _spread(session, ActivityRow.findings, since, until, points, by)


def incidents_begun(
    session: Session, *, since: float, until: float, points: int = 48, by: str = "guard"
) -> dict[str, list[int]]:
    """Incidents that began in each of `points` equal spans."""
    return _spread(session, ActivityRow.incidents, since, until, points, by)


def _spread(
    session: Session, counted: sa.orm.InstrumentedAttribute[int], since: float, until: float, points: int, by: str
) -> dict[str, list[int]]:
    column = getattr(CauseRow, by)
    query = (
        sa.select(column.label("name"), ActivityRow.bucket, sa.func.sum(counted).label("count"))
        .join(CauseRow, CauseRow.id == ActivityRow.cause_id)
        .where(ActivityRow.bucket > since - BUCKET_SECONDS, ActivityRow.bucket < until)
        .group_by(column, ActivityRow.bucket)
    )
    span = max(until - since, 1e-9) / points
    series: dict[str, list[int]] = {}
    for name, begin, count in session.execute(query):
        at = min(max(int((begin - since) / span), 0), points - 1)
        series.setdefault(name, [0] * points)[at] += int(count)
    return dict(sorted(series.items()))


def by_status(session: Session) -> Mapping[str, int]:
    """How many incidents there are of each status; a scan of one index."""
    query = sa.select(IncidentRow.status, sa.func.count()).group_by(IncidentRow.status)
    return {str(status): int(count) for status, count in session.execute(query)}


def active_since(session: Session, since: float, limit: int = 10_000) -> int:
    """Incidents, not muted and not closed, with a finding since then; counts no further than `limit`."""
    living = IncidentRow.status.in_(("open", "acknowledged"))
    few = sa.select(IncidentRow.id).where(living, IncidentRow.last_seen >= since).limit(limit).subquery()
    return int(session.scalar(sa.select(sa.func.count()).select_from(few)) or 0)
