"""Questions about replicas and requests."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.replay.catalog.fleet import ReplicaRow, RequestRow
from checkengine.replay.catalog.models import ActionRow, FindingRow

ERROR = 2
"""Severity at which a finding leads to its guard's action."""


def replicas(session: Session, since: float | None = None) -> list[ReplicaRow]:
    """By name; those that told something since then, or all."""
    query = sa.select(ReplicaRow).order_by(ReplicaRow.name)
    return list(session.scalars(query.where(ReplicaRow.last_seen >= since) if since is not None else query))


def replica(session: Session, name: str) -> ReplicaRow | None:
    return session.get(ReplicaRow, name)


def environment_difference(mine: ReplicaRow, others: list[ReplicaRow]) -> list[tuple[str, str, dict[str, int]]]:
    """What this replica has otherwise than the most of its siblings do: name, its value, and how many siblings have
    each value. Names that tell one replica from another by nature are left out."""
    own = flat(mine)
    theirs = [flat(other) for other in others if other.name != mine.name]
    told: list[tuple[str, str, dict[str, int]]] = []
    for name in sorted(own.keys() | {key for values in theirs for key in values}):
        counts: dict[str, int] = {}
        for values in theirs:
            counts[values.get(name, "")] = counts.get(values.get(name, ""), 0) + 1
        value = own.get(name, "")
        if counts and counts.get(value, 0) * 2 < len(theirs):
            told.append((name, value, dict(sorted(counts.items(), key=lambda item: -item[1]))))
    return told


def flat(row: ReplicaRow) -> dict[str, str]:
    values = {name: str(getattr(row, name)) for name in ("engine", "model", "device_name", "driver", "image", "kernel")}
    for table in ("versions", "kernels", "counters"):
        values |= {f"{table}.{key}": str(value) for key, value in getattr(row, table).items()}
    return values


def requests(session: Session, name: str, limit: int = 100) -> list[RequestRow]:
    """Sequences of a request, response or trace id, or the sequence of that name; newest first."""
    found: dict[int, RequestRow] = {}
    for column in (RequestRow.sequence, RequestRow.request, RequestRow.response, RequestRow.trace_id):
        for row in session.scalars(sa.select(RequestRow).where(column == name).limit(limit)):
            found[row.id] = row
    return sorted(found.values(), key=lambda row: (-row.time, row.id))[:limit]


def would_have_stopped(session: Session, guard: str, *, since: float, limit: int = 50) -> list[FindingRow]:
    """Findings on which the guard would have acted and did not, because it only observes; newest first, one a
    sequence and incident at most."""
    acted = sa.select(ActionRow.id).where(
        ActionRow.incident_id == FindingRow.incident_id, ActionRow.sequence == FindingRow.sequence
    )
    query = sa.select(FindingRow).where(
        FindingRow.guard == guard,
        FindingRow.primary.is_(True),
        FindingRow.severity >= ERROR,
        FindingRow.time >= since,
        ~acted.exists(),
    )
    found: dict[tuple[str, str], FindingRow] = {}
    for row in session.scalars(query.order_by(FindingRow.time.desc(), FindingRow.id).limit(20 * limit)):
        found.setdefault((row.incident_id, row.sequence), row)
    return list(found.values())[:limit]
