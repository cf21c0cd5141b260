"""Incidents as lines of a list: what happened in a sentence, how bad it is, and how far it is looked into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.dashboards.web import words
from checkengine.dashboards.web.render import part
from checkengine.guards.finding import Severity
from checkengine.replay.catalog.models import BundleRow, IncidentRow, ReplayRow

TONES = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.INFO: ""}
STATUS_TONES = {"open": "bad", "acknowledged": "warn", "muted": "", "closed": "good"}


@dataclass(frozen=True, slots=True)
class Line:
    row: IncidentRow
    address: str
    sentence: str
    severity: str
    tone: str
    """bad, warn, or empty; the look of it."""
    status_tone: str
    guard: str
    model: str
    device: str
    kernel: str
    bundles: int
    verdict: str
    """Of the newest replay of any of its bundles; empty where none was judged."""


def lines_of(session: Session, rows: Sequence[IncidentRow]) -> list[Line]:
    bundles, verdicts = evidence_of(session, [row.id for row in rows])
    return [line_of(row, bundles.get(row.id, 0), verdicts.get(row.id, "")) for row in rows]


def line_of(row: IncidentRow, bundles: int = 0, verdict: str = "") -> Line:
    cause = row.cause
    severity = Severity(cause.severity) if cause is not None and 0 <= cause.severity <= 2 else Severity.WARNING
    told = (cause.guard, cause.model, cause.device, cause.kernel) if cause is not None else ("", "", "", "")
    tone = TONES[severity] if row.status in ("open", "acknowledged") else ""
    status = STATUS_TONES.get(row.status, "") if row.status != "open" or severity is Severity.ERROR else "warn"
    return Line(row, address_of(row.id), sentence(row), severity.name.lower(), tone, status, *told, bundles, verdict)


def address_of(incident: str) -> str:
    return f"/incidents/{part(incident)}"


def sentence(row: IncidentRow) -> str:
    """ "NaN or infinity in raw logits on 3 sequences"."""
    what = words.kind(row.kind)
    found = f"{what[:1].upper()}{what[1:]}"
    return f"{found} on {words.count(row.sequences, 'sequence')}" if row.sequences else found


def evidence_of(session: Session, incidents: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
    """By incident: bundles, and the newest verdict."""
    if not incidents:
        return {}, {}
    mine = BundleRow.incident_id.in_(incidents)
    counted = sa.select(BundleRow.incident_id, sa.func.count()).where(mine).group_by(BundleRow.incident_id)
    judged = (
        sa.select(BundleRow.incident_id, ReplayRow.verdict)
        .join(ReplayRow, ReplayRow.bundle == BundleRow.id)
        .where(mine, ReplayRow.verdict != "")
        .order_by(ReplayRow.time)
    )
    bundles = {str(incident): int(count) for incident, count in session.execute(counted)}
    return bundles, {str(incident): str(verdict) for incident, verdict in session.execute(judged)}
