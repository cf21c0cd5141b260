"""Who did what: the audit log of people's changes."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from checkengine.dashboards.web.access import Access
from checkengine.dashboards.web.pages import Pages
from checkengine.dashboards.web.people import Person
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.marks import audit_log

ROWS = 100
MOST_ID = 2**31 - 1
"""Of a row: a larger number fits no database's column."""


def router(pages: Pages, access: Access, catalog: Catalog, clock: Callable[[], float]) -> APIRouter:
    made = APIRouter()
    looking = access.look()

    @made.get("/history")
    def show(
        request: Request, actor: str = "", subject: str = "", before: int = 0, person: Person = looking
    ) -> Response:
        chosen = {"actor": actor.replace("\0", "")[:128], "subject": subject.replace("\0", "")[:256]}
        with catalog.reading() as session:
            rows = audit_log(session, **chosen, before=min(max(0, before), MOST_ID), limit=ROWS + 1)
        values = {
            "now": clock(),
            "rows": rows[:ROWS],
            "next": str(rows[ROWS - 1].id) if len(rows) > ROWS else None,
            "chosen": chosen,
        }
        return pages.answer(request, "history.html", person, "History", "/history", values)

    return made
