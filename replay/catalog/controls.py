"""What operators want of replicas, and what replicas are to do now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.guards.errors import UserError
from checkengine.replay.catalog.fleet import EVERY_REPLICA, ControlRow
from checkengine.replay.catalog.marks import Actor, write_audit

SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "guard": ("off", "on", "rearm", "act", "observe"),
    "sidecar": ("off", "on"),
    "brake": ("pull", "release"),
    "capture": ("arm", "disarm"),
    "replica": ("drain", "release"),
}
"""What each can be asked for, as `desired["state"]`."""


@dataclass(frozen=True, slots=True)
class Control:
    revision: int
    replica: str
    subject: str
    name: str
    desired: Mapping[str, Any]
    actor: str
    time: float


def ask(
    session: Session,
    actor: Actor,
    *,
    replica: str,
    subject: str,
    name: str = "",
    desired: Mapping[str, Any],
    time: float,
    expires: float | None = None,
) -> int:
    """Write down what is wanted of a replica (or of all, `*`); returns the revision. `desired` holds `state` and, for a
    capture, `when`, `level`, `seconds` and `most`. UserError for what cannot be asked for."""
    if desired.get("state") not in SUBJECTS.get(subject, ()):
        allowed = "; ".join(f"{key}: {', '.join(states)}" for key, states in SUBJECTS.items())
        raise UserError(f"{subject} {desired.get('state')!r} cannot be asked for ({allowed})")
    words = {"replica": replica[:256], "subject": subject, "name": name[:128], "actor": actor.name[:128]}
    row = ControlRow(desired=dict(desired), expires=expires, time=time, **words)
    session.add(row)
    session.flush()
    data = {"revision": row.id, "name": name[:128], "desired": dict(desired), "expires": expires}
    write_audit(session, actor, f"{subject} {desired['state']}", "replica", replica, time, data)
    return row.id


def wanted(session: Session, replica: str, now: float) -> list[Control]:
    """What holds for a replica, in the order of revisions: of each subject and name the newest word, whether it was
    said to this replica or to all. What has expired is left out."""
    mine = ControlRow.replica.in_((replica, EVERY_REPLICA))
    newest = sa.select(sa.func.max(ControlRow.id)).where(mine).group_by(ControlRow.subject, ControlRow.name)
    living = sa.or_(ControlRow.expires.is_(None), ControlRow.expires > now)
    query = sa.select(ControlRow).where(ControlRow.id.in_(newest), living).order_by(ControlRow.id)
    return [
        Control(row.id, row.replica, row.subject, row.name, row.desired, row.actor, row.time)
        for row in session.scalars(query)
    ]


def history(session: Session, replica: str | None = None, limit: int = 100) -> list[ControlRow]:
    """Newest first."""
    query = sa.select(ControlRow).order_by(ControlRow.id.desc()).limit(limit)
    return list(session.scalars(query.where(ControlRow.replica == replica) if replica is not None else query))
