"""What people do to incidents; every change stands in the audit log, in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.guards.errors import UserError
from checkengine.replay.catalog.insert import is_postgresql
from checkengine.replay.catalog.models import CauseRow, IncidentRow
from checkengine.replay.catalog.people import AuditRow, CommentRow, MuteRow

Mark = Literal["open", "acknowledged", "closed"]
MARKS_LOCK = 0x0C4EC4E7
"""Of PostgreSQL's advisory locks."""
MUTABLE = ("open", "muted")
MOST_TEXT = 10_000
MOST_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does it."""

    name: str
    role: str = ""
    remote: str = ""
    """Address that it came from."""


def write_audit(
    session: Session,
    actor: Actor,
    action: str,
    subject_kind: str,
    subject: str,
    time: float,
    data: Mapping[str, Any] | None = None,
) -> None:
    """One row of the audit log. `data` is plain JSON and holds no content of requests."""
    words = {"actor": actor.name[:128], "role": actor.role[:16], "remote": actor.remote[:64], "action": action[:64]}
    about = {"subject_kind": subject_kind[:32], "subject": subject[:256]}
    session.add(AuditRow(time=time, data=dict(data or {}), **words, **about))


def mark(session: Session, actor: Actor, incidents: Sequence[str], status: Mark, time: float) -> list[str]:
    """Set the status of incidents; returns the ids that changed. Unknown ids are passed over."""
    changed = []
    for row in locked(session, incidents):
        if row.status == status:
            continue
        write_audit(session, actor, status, "incident", row.id, time, {"was": row.status})
        row.status = status
        row.acknowledged = time if status == "acknowledged" else row.acknowledged if status == "closed" else None
        changed.append(row.id)
    return changed


def assign(session: Session, actor: Actor, incidents: Sequence[str], assignee: str, time: float) -> list[str]:
    """To nobody where `assignee` is empty; returns the ids that changed."""
    changed = []
    for row in locked(session, incidents):
        if row.assignee == assignee[:128]:
            continue
        write_audit(session, actor, "assign", "incident", row.id, time, {"was": row.assignee, "to": assignee[:128]})
        row.assignee = assignee[:128]
        changed.append(row.id)
    return changed


def hold(session: Session, actor: Actor, incident: str, held: bool, time: float) -> bool:
    """A held incident is deleted by no retention. False where there is no such incident."""
    for row in locked(session, [incident]):
        if row.held != held:
            write_audit(session, actor, "hold" if held else "release", "incident", row.id, time)
            row.held = held
        return True
    return False


def comment(session: Session, actor: Actor, incident: str, text: str, time: float) -> int:
    """Returns the comment's id. UserError for an empty or overlong text, or an incident that is not there."""
    text = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode().strip()
    if not text or len(text) > MOST_TEXT:
        raise UserError(f"a comment has 1 to {MOST_TEXT} letters, not {len(text)}")
    if session.get(IncidentRow, incident) is None:
        raise UserError(f"there is no incident {incident[:64]}")
    row = CommentRow(incident_id=incident, author=actor.name[:128], time=time, text=text)
    session.add(row)
    write_audit(session, actor, "comment", "incident", incident, time)
    session.flush()
    return row.id


def comments(session: Session, incident: str) -> list[CommentRow]:
    """Oldest first."""
    query = sa.select(CommentRow).where(CommentRow.incident_id == incident)
    return list(session.scalars(query.order_by(CommentRow.time, CommentRow.id)))


def mute(session: Session, actor: Actor, fingerprint: str, *, expires: float, time: float, reason: str = "") -> int:
    """Open incidents of the fingerprint, and those that come before `expires`, are muted; returns how many are now.
    UserError for an expiry that has passed or a fingerprint that no cause has."""
    if expires <= time:
        raise UserError("a mute ends in the future")
    one_at_a_time(session)
    if not session.scalar(sa.select(CauseRow.id).where(CauseRow.fingerprint == fingerprint).limit(1)):
        raise UserError(f"no incident has the fingerprint {fingerprint[:16]}")
    row = MuteRow(
        fingerprint=fingerprint, expires=expires, reason=reason[:MOST_TEXT], actor=actor.name[:128], time=time
    )
    session.add(row)
    write_audit(session, actor, "mute", "fingerprint", fingerprint, time, {"expires": expires, "reason": row.reason})
    return restate(session, [fingerprint], "open", "muted")


def unmute(session: Session, actor: Actor, fingerprint: str, time: float) -> int:
    """End every mute of it; returns how many incidents are open again."""
    one_at_a_time(session)
    living = session.scalars(active(MuteRow.fingerprint == fingerprint)).all()
    for row in living:
        row.lifted = time
    if living:
        write_audit(session, actor, "unmute", "fingerprint", fingerprint, time)
    session.flush()
    return restate(session, [fingerprint], "muted", "open")


def lift_expired_mutes(session: Session, now: float) -> int:
    """Incidents whose mute has run out are open again; the collector calls it each round. Returns how many."""
    expired = session.scalars(active(MuteRow.expires <= now)).all()
    if not expired:
        return 0
    one_at_a_time(session)
    for row in expired:
        row.lifted = now
        write_audit(session, Actor("checkengine"), "unmute", "fingerprint", row.fingerprint, now, {"expired": True})
    session.flush()
    still = set(session.scalars(sa.select(MuteRow.fingerprint).where(MuteRow.lifted.is_(None))))
    return restate(session, sorted({row.fingerprint for row in expired} - still), "muted", "open")


def mutes(session: Session) -> list[MuteRow]:
    """Those that hold, the soonest to expire first."""
    return list(session.scalars(active().order_by(MuteRow.expires)))


def audit_log(
    session: Session, *, subject_kind: str = "", subject: str = "", actor: str = "", before: int = 0, limit: int = 100
) -> list[AuditRow]:
    """Newest first; `before` is the id of the last row of the page before."""
    query = sa.select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    for column, value in ((AuditRow.subject_kind, subject_kind), (AuditRow.subject, subject), (AuditRow.actor, actor)):
        query = query.where(column == value) if value else query
    return list(session.scalars(query.where(AuditRow.id < before) if before else query))


def active(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(MuteRow).where(MuteRow.lifted.is_(None), *conditions)


def restate(session: Session, fingerprints: Sequence[str], was: str, status: str) -> int:
    lock_causes(session, fingerprints)
    causes = sa.select(CauseRow.id).where(CauseRow.fingerprint.in_(fingerprints))
    changed = sa.update(IncidentRow).where(IncidentRow.cause_id.in_(causes), IncidentRow.status == was)
    result: Any = session.execute(changed.values(status=status).execution_options(synchronize_session="fetch"))
    return int(result.rowcount)


def lock_causes(session: Session, fingerprints: Sequence[str]) -> None:
    """All incidents that a mute may change, of several fingerprints at once: a collector counts in them by id too."""
    one_at_a_time(session)
    causes = sa.select(CauseRow.id).where(CauseRow.fingerprint.in_(fingerprints))
    query = sa.select(IncidentRow.id).where(IncidentRow.cause_id.in_(causes), IncidentRow.status.in_(MUTABLE))
    session.execute(in_order(query)).all()


def in_order(query: sa.Select[Any]) -> sa.Select[Any]:
    """Rows of incidents, locked by id, so that nobody deadlocks; findings and comments may refer to them meanwhile."""
    return query.order_by(IncidentRow.id).with_for_update(of=IncidentRow, key_share=True)


def one_at_a_time(session: Session) -> None:
    """People mark in turn, to the end of their transactions: bulk actions in any order never wait for each other in a
    circle. SQLite's writers take turns anyway."""
    if is_postgresql(session):
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(MARKS_LOCK)))


def locked(session: Session, incidents: Sequence[str]) -> list[IncidentRow]:
    if len(incidents) > MOST_AT_ONCE:
        raise UserError(f"{len(incidents)} incidents at once are too many; at most {MOST_AT_ONCE}")
    one_at_a_time(session)
    return list(session.scalars(in_order(sa.select(IncidentRow).where(IncidentRow.id.in_(incidents)))).unique())
