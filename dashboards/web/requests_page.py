"""A customer's complaint from yesterday: a request by any of its ids, what was read of it, and its bundle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from checkengine.dashboards.web.access import Access
from checkengine.dashboards.web.lines import lines_of
from checkengine.dashboards.web.pages import Pages
from checkengine.dashboards.web.people import Person
from checkengine.replay.catalog import Catalog, register
from checkengine.replay.catalog.fleet import RequestRow
from checkengine.replay.catalog.incident_list import IncidentFilter, incident_page
from checkengine.replay.catalog.models import FindingRow

NEWEST = 50
MOST_ID = 512


def router(pages: Pages, access: Access, catalog: Catalog, clock: Callable[[], float]) -> APIRouter:
    made = APIRouter()
    looking = access.look()

    @made.get("/requests")
    def show(request: Request, id: str = "", person: Person = looking) -> Response:
        name = id.replace("\0", "").strip()[:MOST_ID]
        with catalog.reading() as session:
            values = found(session, name) if name else newest(session)
        values |= {"now": clock(), "id": name}
        return pages.answer(request, "requests.html", person, "Requests", "/requests", values)

    return made


def found(session: Session, name: str) -> dict[str, Any]:
    rows = register.requests(session, name)
    page = incident_page(session, IncidentFilter(request=name), limit=20)
    names = {row.sequence for row in rows} or {name}
    query = sa.select(FindingRow).where(FindingRow.sequence.in_(names))
    findings = list(session.scalars(query.order_by(FindingRow.time, FindingRow.id).limit(200)))
    return {"rows": rows, "incidents": lines_of(session, page.rows), "findings": findings}


def newest(session: Session) -> dict[str, Any]:
    rows = list(session.scalars(sa.select(RequestRow).order_by(RequestRow.time.desc()).limit(NEWEST)))
    return {"rows": rows, "incidents": [], "findings": []}
