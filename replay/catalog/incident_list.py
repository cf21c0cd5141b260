"""The incident list: filtered, newest first, page by page, in milliseconds at a million incidents.

Filters on guard, kind, place and kernel choose causes, of which there are few. The newest incidents that match lie in
the causes whose own newest incident is newest, so a page looks one row up in each cause and then reads a page from a
page's worth of them; it never reads the incidents in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from checkengine.guards.errors import UserError
from checkengine.replay.catalog.fleet import RequestRow
from checkengine.replay.catalog.models import CauseRow, FindingRow, IncidentRow

STATUSES = ("open", "acknowledged", "muted", "closed")
Pair = tuple[int | None, str | None]
"""A cause and a status; None for any."""
MOST_ROWS = 500
MOST_MATCHES = 1000
"""Incidents that one request or trace id leads to."""


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Empty fields match everything; several values of one field match any of them. Times are Unix seconds."""

    guard: Sequence[str] = ()
    kind: Sequence[str] = ()
    model: Sequence[str] = ()
    replica: Sequence[str] = ()
    device: Sequence[str] = ()
    driver: Sequence[str] = ()
    kernel: Sequence[str] = ()
    fingerprint: Sequence[str] = ()
    prefix: str = ""
    """hit or miss."""
    least_severity: int | None = None
    status: Sequence[str] = ()
    assignee: str | None = None
    """Empty text: nobody's."""
    request: str = ""
    """Exactly this sequence, request, response or trace id."""
    since: float | None = None
    until: float | None = None
    """Of the last finding."""

    def causes(self) -> list[sa.ColumnElement[bool]]:
        """Conditions on CauseRow."""
        names = ("guard", "kind", "model", "replica", "device", "driver", "kernel", "fingerprint")
        lists = {name: list(values) for name in names if (values := getattr(self, name))}
        conditions: list[sa.ColumnElement[bool]] = [getattr(CauseRow, name).in_(v) for name, v in lists.items()]
        if self.prefix:
            conditions.append(CauseRow.prefix == self.prefix)
        if self.least_severity is not None:
            conditions.append(CauseRow.severity >= self.least_severity)
        return conditions


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last incident of a page; the next page begins behind it."""

    last_seen: float
    id: str

    def __str__(self) -> str:
        return f"{self.last_seen!r}~{self.id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """UserError for a text that `str` did not make."""
        seen, _, identifier = text.partition("~")
        try:
            return cls(float(seen), identifier)
        except ValueError:
            raise UserError(f"{text[:80]!r} is no page of the incident list; begin again at its first") from None


@dataclass(frozen=True, slots=True)
class Page:
    rows: list[IncidentRow] = field(default_factory=list)
    """With their `cause`."""
    next: Cursor | None = None
    """None on the last page."""


def incident_page(
    session: Session, chosen: IncidentFilter | None = None, *, after: Cursor | None = None, limit: int = 50
) -> Page:
    """Incidents that meet all of the filter, the most recently seen first. An incident that is seen again while
    somebody pages moves to the front."""
    chosen, limit = chosen or IncidentFilter(), max(1, min(limit, MOST_ROWS))
    rows = found_rows(session, chosen, after, limit + 1)
    if len(rows) <= limit:
        return Page(rows)
    last = rows[limit - 1]
    return Page(rows[:limit], Cursor(last.last_seen, last.id))


def found_rows(session: Session, chosen: IncidentFilter, after: Cursor | None, limit: int) -> list[IncidentRow]:
    bounds = window(IncidentRow, chosen, after)
    causes = chosen.causes()
    if chosen.request:
        bounds.append(IncidentRow.id.in_(incidents_of_request(session, chosen.request)))
    elif chosen.assignee:
        bounds.append(IncidentRow.assignee == chosen.assignee)
    elif causes or chosen.status or chosen.assignee is not None:
        return by_heads(session, chosen, after, limit)
    if causes:
        # Plus zero: no index of causes is to be walked here, an assignee's or a request's incidents are fewer.
        bounds.append((IncidentRow.cause_id + 0).in_(sa.select(CauseRow.id).where(*causes)))
    if chosen.status:
        bounds.append(IncidentRow.status.in_(chosen.status))
    return newest(session, sa.select(IncidentRow).where(*bounds), limit)


def newest(session: Session, query: sa.Select[Any], limit: int) -> list[IncidentRow]:
    ordered = query.order_by(IncidentRow.last_seen.desc(), IncidentRow.id.desc()).limit(limit)
    return list(session.scalars(ordered).unique())


def window(row: Any, chosen: IncidentFilter, after: Cursor | None) -> list[sa.ColumnElement[bool]]:
    bounds: list[sa.ColumnElement[bool]] = []
    if chosen.since is not None:
        bounds.append(row.last_seen >= chosen.since)
    if chosen.until is not None:
        bounds.append(row.last_seen < chosen.until)
    if after is not None:
        bounds.append(sa.tuple_(row.last_seen, row.id) < sa.tuple_(after.last_seen, after.id))
    if chosen.assignee == "":
        bounds.append(row.assignee == "")
    return bounds


def by_heads(session: Session, chosen: IncidentFilter, after: Cursor | None, limit: int) -> list[IncidentRow]:
    """From the `limit` causes (by status, where one is asked for) whose newest incident is newest, `limit` incidents
    each at most."""
    pairs = heads(session, chosen, after, limit)
    if not pairs:
        return []
    ids = session.scalars(*newest_of(pairs, chosen, after, limit)).all()
    return newest(session, sa.select(IncidentRow).where(IncidentRow.id.in_(ids)), limit)


def newest_of(
    pairs: Sequence[Pair], chosen: IncidentFilter, after: Cursor | None, limit: int
) -> tuple[sa.TextClause, dict[str, Any]]:
    """Ids, as text: a statement of `limit` parts takes longer to compose of objects than to run."""
    values: dict[str, Any] = {"limit": limit, "since": chosen.since, "until": chosen.until}
    bounds = " AND last_seen >= :since" * (chosen.since is not None) + " AND last_seen < :until" * (
        chosen.until is not None
    )
    bounds += " AND assignee = ''" * (chosen.assignee == "")
    if after is not None:
        bounds += " AND (last_seen, id) < (:seen, :after)"
        values |= {"seen": after.last_seen, "after": after.id}
    parts = []
    for number, (cause, status) in enumerate(pairs):
        values |= {f"status{number}": status, f"cause{number}": cause}
        mine = "1 = 1" + f" AND status = :status{number}" * (status is not None)
        mine += f" AND cause_id = :cause{number}" * (cause is not None) + bounds
        found = f"SELECT id, last_seen FROM incidents WHERE {mine} ORDER BY last_seen DESC, id DESC LIMIT :limit"
        parts.append(f"SELECT id, last_seen FROM ({found}) AS part{number}")
    every = " UNION ALL ".join(parts)
    query = f"SELECT id FROM ({every}) AS every_part ORDER BY last_seen DESC, id DESC LIMIT :limit"
    return sa.text(query), {name: value for name, value in values.items() if f":{name}" in query}


def heads(session: Session, chosen: IncidentFilter, after: Cursor | None, limit: int) -> list[Pair]:
    wanted = [status for status in STATUSES if not chosen.status or status in chosen.status]
    statuses: list[str | None] = [*wanted] if len(wanted) < len(STATUSES) else [None]
    if not chosen.causes():
        return [(None, status) for status in statuses]
    parts = [head_query(chosen, after, status) for status in statuses]
    candidates = (sa.union_all(*parts) if len(parts) > 1 else parts[0]).subquery() if parts else None
    if candidates is None:
        return []
    head = aliased(IncidentRow)
    query = sa.select(candidates.c.id, candidates.c.status).join(head, head.id == candidates.c.newest)
    found = session.execute(query.order_by(head.last_seen.desc(), head.id.desc()).limit(limit))
    return [(int(cause), status) for cause, status in found]


def head_query(chosen: IncidentFilter, after: Cursor | None, status: str | None) -> sa.Select[Any]:
    """Each cause with its newest incident behind the cursor."""
    inner = aliased(IncidentRow)
    mine = [inner.cause_id == CauseRow.id, *([inner.status == status] if status is not None else [])]
    newest_id = sa.select(inner.id).where(*mine, *window(inner, chosen, after))
    newest_id = newest_id.order_by(inner.last_seen.desc(), inner.id.desc()).limit(1)
    told = sa.literal(status, sa.String).label("status")
    return sa.select(CauseRow.id, told, newest_id.scalar_subquery().label("newest")).where(*chosen.causes())


def incidents_of_request(session: Session, name: str) -> list[str]:
    """Ids of incidents on a sequence, or on the sequences of a request, response or trace."""
    owns = sa.or_(RequestRow.request == name, RequestRow.response == name, RequestRow.trace_id == name)
    sequences = session.scalars(sa.select(RequestRow.sequence).where(owns).limit(MOST_MATCHES))
    names = {name, *sequences}
    query = sa.select(FindingRow.incident_id).where(FindingRow.sequence.in_(names)).distinct()
    return list(session.scalars(query.limit(MOST_MATCHES)))


def choices(session: Session, name: str, limit: int = 200) -> list[str]:
    """Values of one of a cause's columns (guard, kind, model, replica, device, driver, kernel), for a filter's menu."""
    column = getattr(CauseRow, name)
    return list(session.scalars(sa.select(column).where(column != "").distinct().order_by(column).limit(limit)))
