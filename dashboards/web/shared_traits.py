"""What the faulty requests of an incident have in common and the healthy ones do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.replay.catalog.fleet import RequestRow
from checkengine.replay.catalog.models import FindingRow, IncidentRow

if TYPE_CHECKING:
    from checkengine.dashboards.explain import Attributes, Explanation

MOST = 600
"""Requests of each side."""
AROUND_SECONDS = 3600.0
PAGES = (16, 32, 64, 128)
"""Sizes of pages and tiles that kernels trip over."""


def shared_trait(session: Session, incident: IncidentRow) -> Explanation | None:
    """None where requests are too few, or where nothing tells them apart."""
    mine = sa.select(FindingRow.sequence).where(FindingRow.incident_id == incident.id, FindingRow.primary.is_(True))
    names = set(session.scalars(mine.distinct().limit(MOST)))
    faulty = list(session.scalars(sa.select(RequestRow).where(RequestRow.sequence.in_(names))))
    if len(faulty) < 6:
        return None
    from checkengine.dashboards.explain import explain

    near = (
        RequestRow.time >= incident.first_seen - AROUND_SECONDS,
        RequestRow.time <= incident.last_seen + AROUND_SECONDS,
        ~sa.select(FindingRow.id).where(FindingRow.sequence == RequestRow.sequence).exists(),
    )
    healthy = list(session.scalars(sa.select(RequestRow).where(*near).order_by(RequestRow.time.desc()).limit(MOST)))
    return explain(attributes(faulty), attributes(healthy))


def attributes(rows: Sequence[RequestRow]) -> list[Attributes]:
    return [
        {
            "replica": row.replica,
            "model": row.model,
            "configuration": row.configuration,
            "prefix hit": row.cached_tokens > 0,
            "prompt tokens": row.prompt_tokens,
            **{f"length modulo {page}": (row.prompt_tokens + row.output_tokens) % page for page in PAGES},
            **{f"prompt length modulo {page}": row.prompt_tokens % page for page in PAGES},
        }
        for row in rows
    ]
