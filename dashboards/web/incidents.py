"""The incident list: filter, page, and act on many at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from checkengine.dashboards.web.access import Access, Acting
from checkengine.dashboards.web.filters import NAMES, PLACES, TIMES, chosen_of, clean_query
from checkengine.dashboards.web.lines import lines_of
from checkengine.dashboards.web.pages import Pages, go
from checkengine.dashboards.web.people import Person, Role
from checkengine.dashboards.web.problems import Problem
from checkengine.dashboards.web.render import query
from checkengine.dashboards.web.triage import apply
from checkengine.replay.catalog import Catalog, marks
from checkengine.replay.catalog.incident_list import choices, incident_page
from checkengine.replay.catalog.people import SavedViewRow, UserRow

ROWS = 50
MOST_VIEWS = 50
RARE = {"device", "driver", "kernel", "prefix", "severity", "assignee"}
"""Filters that are folded away until one is used."""


def router(pages: Pages, access: Access, catalog: Catalog, clock: Callable[[], float]) -> APIRouter:
    made = APIRouter()
    looking, acting_role = access.look(), access.act(Role.OPERATOR)
    viewing = access.act(Role.VIEWER)

    @made.get("/incidents")
    def show(request: Request, person: Person = looking) -> Response:
        now = clock()
        chosen = chosen_of(request.query_params, now)
        with catalog.reading() as session:
            page = incident_page(session, chosen.filter, after=chosen.after, limit=ROWS)
            values = {
                "now": now,
                "lines": lines_of(session, page.rows),
                "next": str(page.next) if page.next is not None else None,
                "first": chosen.after is None,
                "chosen": dict(chosen.values),
                "more_filters": bool(chosen.values.keys() & RARE),
                "views": saved_views(session, person),
                **menus(session),
            }
        return pages.answer(request, "incidents.html", person, "Incidents", "/incidents", values)

    @made.post("/incidents")
    def act(acting: Acting = acting_role) -> Response:
        back = f"/incidents{query(clean_query(acting.form.one('back')))}"
        chosen = acting.form.all("incident")
        if not chosen:
            return go(back, "nothing")
        with catalog.writing() as session:
            return go(back, apply(session, acting, chosen, clock()))

    @made.post("/views")
    def save(acting: Acting = viewing) -> Response:
        asked = clean_query(acting.form.one("query"))
        with catalog.writing() as session:
            keep_view(session, acting.person, acting.form.one("name").strip(), query(asked), clock())
        return go(f"/incidents{query(asked)}", "saved")

    @made.post("/views/remove")
    def remove(acting: Acting = viewing) -> Response:
        with catalog.writing() as session:
            mine = (SavedViewRow.owner == acting.person.name, SavedViewRow.name == acting.form.one("name"))
            session.execute(sa.delete(SavedViewRow).where(*mine))
        return go("/incidents", "removed")

    return made


def menus(session: Session) -> dict[str, Any]:
    """What can be chosen of each filter."""
    users = session.scalars(sa.select(UserRow.name).where(UserRow.disabled.is_(None)).order_by(UserRow.name).limit(200))
    return {
        "menus": {name: choices(session, name) for name in PLACES},
        "times": list(TIMES),
        "users": list(users),
        "names": NAMES,
        "mutes": marks.mutes(session),
    }


def saved_views(session: Session, person: Person) -> list[SavedViewRow]:
    mine = sa.or_(SavedViewRow.owner == person.name, SavedViewRow.shared.is_(True))
    return list(session.scalars(sa.select(SavedViewRow).where(mine).order_by(SavedViewRow.name).limit(200)))


def keep_view(session: Session, person: Person, name: str, asked: str, now: float) -> None:
    if not 0 < len(name) <= 60:
        raise Problem(400, "A view needs a name", "Of 1 to 60 characters.")
    mine = SavedViewRow.owner == person.name
    count = session.scalar(sa.select(sa.func.count()).select_from(SavedViewRow).where(mine)) or 0
    row = session.scalar(sa.select(SavedViewRow).where(mine, SavedViewRow.name == name))
    if row is None:
        if count >= MOST_VIEWS:
            raise Problem(400, "That is one view too many", f"At most {MOST_VIEWS} each; remove one first.")
        row = SavedViewRow(owner=person.name, name=name)
        session.add(row)
    row.query, row.time, row.shared = asked, now, False
