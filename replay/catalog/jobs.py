"""Replays that somebody asked for: queued, claimed by one worker, done."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.replay.catalog.fleet import JobRow
from checkengine.replay.catalog.marks import Actor, write_audit

SILENT_SECONDS = 60.0
"""A running job whose worker has been silent for so long may be claimed again."""
LIVING = ("queued", "running")


def submit(
    session: Session,
    actor: Actor,
    *,
    bundle: str,
    time: float,
    incident_id: str = "",
    kind: str = "replay",
    target: str = "local",
    options: Mapping[str, Any] | None = None,
) -> str:
    """Returns the job's id; of the same bundle, kind and target only one waits or runs at a time, and its id is given
    to whoever asks again."""
    same = (JobRow.bundle == bundle, JobRow.kind == kind, JobRow.target == target, JobRow.state.in_(LIVING))
    if (known := session.scalar(sa.select(JobRow.id).where(*same).limit(1))) is not None:
        return known
    identifier = uuid.uuid4().hex
    words = {"bundle": bundle, "incident_id": incident_id, "kind": kind, "target": target, "actor": actor.name[:128]}
    session.add(JobRow(id=identifier, created=time, options=dict(options or {}), **words))
    write_audit(session, actor, kind, "bundle", bundle, time, {"job": identifier, "target": target})
    return identifier


def claim(session: Session, worker: str, targets: Sequence[str], now: float) -> JobRow | None:
    """The oldest job for one of `targets` that waits, or whose worker has fallen silent; it is running afterwards, and
    no other worker gets it."""
    silent = sa.and_(JobRow.state == "running", JobRow.heartbeat < now - SILENT_SECONDS)
    free = sa.and_(JobRow.target.in_(targets), sa.or_(JobRow.state == "queued", silent))
    query = sa.select(JobRow).where(free).order_by(JobRow.created, JobRow.id).limit(1)
    row = session.scalars(query.with_for_update(skip_locked=True)).first()
    if row is not None:
        row.state, row.worker, row.started, row.heartbeat, row.progress = "running", worker, now, now, 0.0
        session.flush()
    return row


def advance(session: Session, job: str, worker: str, *, progress: float, message: str, now: float) -> bool:
    """Tell how far a job is (0 to 1). False where it is no longer the worker's (cancelled, taken over): stop then."""
    return _change(session, job, worker, progress=progress, message=message, heartbeat=now)


def finish(
    session: Session, job: str, worker: str, *, verdict: str, exit_code: int, result: Mapping[str, Any], now: float
) -> bool:
    """False where the job is no longer the worker's; nothing is written then."""
    values = {"verdict": verdict, "exit_code": exit_code, "result": dict(result), "message": ""}
    return _change(session, job, worker, state="done", progress=1.0, ended=now, heartbeat=now, **values)


def fail(session: Session, job: str, worker: str, message: str, now: float) -> bool:
    return _change(session, job, worker, state="failed", message=message, ended=now, heartbeat=now)


def cancel(session: Session, actor: Actor, job: str, time: float) -> bool:
    """False where it had ended. A worker that runs it learns of it when it next tells its progress."""
    row = session.scalars(sa.select(JobRow).where(JobRow.id == job).with_for_update()).first()
    if row is None or row.state not in LIVING:
        return False
    row.state, row.ended = "cancelled", time
    write_audit(session, actor, "cancel", "job", job, time)
    return True


def job(session: Session, identifier: str) -> JobRow | None:
    return session.get(JobRow, identifier)


def jobs(
    session: Session,
    *,
    bundle: str = "",
    incident_id: str = "",
    state: Literal["queued", "running", "done", "failed", "cancelled", ""] = "",
    limit: int = 100,
) -> list[JobRow]:
    """Newest first."""
    query = sa.select(JobRow).order_by(JobRow.created.desc(), JobRow.id).limit(limit)
    for column, value in ((JobRow.bundle, bundle), (JobRow.incident_id, incident_id), (JobRow.state, state)):
        query = query.where(column == value) if value else query
    return list(session.scalars(query))


def _change(session: Session, job: str, worker: str, **values: Any) -> bool:
    mine = (JobRow.id == job, JobRow.worker == worker, JobRow.state == "running")
    result: Any = session.execute(sa.update(JobRow).where(*mine).values(**values))
    return bool(result.rowcount)
