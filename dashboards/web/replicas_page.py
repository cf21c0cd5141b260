"""The register of engine processes, and one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from checkengine.dashboards.web.access import Access
from checkengine.dashboards.web.lines import lines_of
from checkengine.dashboards.web.pages import Pages
from checkengine.dashboards.web.people import Person
from checkengine.dashboards.web.problems import not_found
from checkengine.dashboards.web.replicas_view import guards_of, replica_of, replicas
from checkengine.replay.catalog import Catalog, controls, register
from checkengine.replay.catalog.incident_list import IncidentFilter, incident_page

DAY = 86400.0


def router(pages: Pages, access: Access, catalog: Catalog, clock: Callable[[], float]) -> APIRouter:
    made = APIRouter()
    looking = access.look()

    @made.get("/replicas")
    def show(request: Request, person: Person = looking) -> Response:
        now = clock()
        with catalog.reading() as session:
            values = {"now": now, "fleet": replicas(session, now)}
        return pages.answer(request, "replicas.html", person, "Replicas", "/replicas", values)

    @made.get("/replicas/{name:path}")
    def one(request: Request, name: str, person: Person = looking) -> Response:
        now = clock()
        with catalog.reading() as session:
            row = register.replica(session, name) if "\0" not in name else None
            if row is None:
                raise not_found("such replica")
            others = [each for each in register.replicas(session, now - DAY) if each.model == row.model]
            page = incident_page(session, IncidentFilter(replica=(name,)), limit=20)
            values = {
                "now": now,
                "each": replica_of(row, now),
                "guards": guards_of(row),
                "tables": [(title, told(getattr(row, title))) for title in ("versions", "kernels", "counters")],
                "differences": register.environment_difference(row, others),
                "alike": len(others) - 1,
                "incidents": lines_of(session, page.rows),
                "orders": controls.history(session, name, limit=20),
            }
        return pages.answer(request, "replica.html", person, f"Replica {name[:80]}", "/replicas", values)

    return made


def told(values: Any) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in values.items()] if isinstance(values, Mapping) else []
