"""What people do with incidents: acknowledge, mute, assign, comment, close. Each stands in the history."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.dashboards.web.access import Acting
from checkengine.dashboards.web.problems import Problem
from checkengine.guards.errors import UserError
from checkengine.replay.catalog import marks
from checkengine.replay.catalog.marks import Actor
from checkengine.replay.catalog.models import CauseRow, IncidentRow

MUTE_HOURS = {"1 hour": 1.0, "8 hours": 8.0, "1 day": 24.0, "7 days": 168.0}


def actor_of(acting: Acting) -> Actor:
    return Actor(acting.person.name, acting.person.role.word, acting.remote)


def apply(session: Session, acting: Acting, incidents: Sequence[str], now: float) -> str:
    """Do what the form's `do` asks for; returns the note's key. Problem for what cannot be done."""
    actor, form = actor_of(acting), acting.form
    try:
        match form.one("do"):
            case "acknowledge":
                marks.mark(session, actor, incidents, "acknowledged", now)
                return "acknowledged"
            case "close":
                marks.mark(session, actor, incidents, "closed", now)
                return "closed"
            case "open":
                marks.mark(session, actor, incidents, "open", now)
                return "opened"
            case "assign":
                marks.assign(session, actor, incidents, form.one("assignee").strip(), now)
                return "assigned"
            case "mute":
                return mute(session, acting, incidents, now)
            case "unmute":
                wanted = fingerprints(session, incidents)
                marks.lock_causes(session, wanted)
                for fingerprint in wanted:
                    marks.unmute(session, actor, fingerprint, now)
                return "unmuted"
            case "comment":
                for incident in incidents:
                    marks.comment(session, actor, incident, form.one("text"), now)
                return "commented"
    except UserError as error:
        raise Problem(400, "That cannot be done", str(error)) from None
    raise Problem(400, "That cannot be done", "The form asks for nothing that this page knows.")


def mute(session: Session, acting: Acting, incidents: Sequence[str], now: float) -> str:
    hours = MUTE_HOURS.get(acting.form.one("hours", "1 hour"))
    if hours is None:
        raise Problem(400, "That cannot be done", f"Mute for one of: {', '.join(MUTE_HOURS)}.")
    wanted = fingerprints(session, incidents)
    marks.lock_causes(session, wanted)
    for fingerprint in wanted:
        reason = acting.form.one("reason").strip()
        marks.mute(session, actor_of(acting), fingerprint, expires=now + 3600 * hours, time=now, reason=reason)
    return "muted"


def fingerprints(session: Session, incidents: Sequence[str]) -> list[str]:
    query = sa.select(CauseRow.fingerprint).join(IncidentRow, IncidentRow.cause_id == CauseRow.id)
    return sorted(set(session.scalars(query.where(IncidentRow.id.in_(incidents)))))
