"""One incident: what happened, to whom, where, and its bundle to replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from checkengine.dashboards.web.access import Access, Acting
from checkengine.dashboards.web.bundle_places import BundlePlaces
from checkengine.dashboards.web.evidence import Evidence, PiecesOf, evidence_of
from checkengine.dashboards.web.incident_view import commands, incident_values
from checkengine.dashboards.web.lines import address_of
from checkengine.dashboards.web.pages import Pages, go
from checkengine.dashboards.web.people import Person, Role
from checkengine.dashboards.web.problems import Problem, not_found
from checkengine.dashboards.web.shared_traits import shared_trait
from checkengine.dashboards.web.triage import actor_of, apply
from checkengine.replay.bundle import AccessLog
from checkengine.replay.catalog import Catalog, jobs, register
from checkengine.replay.catalog.fleet import ReplicaRow
from checkengine.replay.catalog.models import BundleRow, IncidentRow


def router(
    pages: Pages,
    access: Access,
    catalog: Catalog,
    clock: Callable[[], float],
    places: BundlePlaces,
    pieces_of: PiecesOf,
) -> APIRouter:
    made = APIRouter()
    looking = access.look()
    operating, ruling = access.act(Role.OPERATOR), access.act(Role.ADMIN)

    def page(request: Request, person: Person, identifier: str, text_of: str = "") -> Response:
        with catalog.reading() as session:
            row = incident_row(session, identifier)
            values = incident_values(session, row, clock())
            values["trait"] = None if "x-live" in request.headers else shared_trait(session, row)
        values |= bundle_values(places, values, text_of, pieces_of)
        return pages.answer(request, "incident.html", person, values["line"].sentence, "/incidents", values)

    @made.get("/incidents/{identifier:path}")
    def show(request: Request, identifier: str, person: Person = looking) -> Response:
        return page(request, person, identifier)

    @made.post("/incident")
    def act(acting: Acting = operating) -> Response:
        identifier = acting.form.one("incident")
        with catalog.writing() as session:
            return go(address_of(identifier), apply(session, acting, [incident_row(session, identifier).id], clock()))

    @made.post("/incident/text")
    def text(request: Request, acting: Acting = ruling) -> Response:
        """With the captured text, for who may read it. On record before anything is opened."""
        bundle = acting.form.one("bundle")
        AccessLog.of_this_deployment().add("show", bundle[:200], f"dashboard: {acting.person.name}")
        return page(request, acting.person, acting.form.one("incident"), bundle)

    @made.post("/replays")
    def replay(acting: Acting = operating) -> Response:
        with catalog.writing() as session:
            row = bundle_row(session, acting.form.one("bundle"))
            ask_for_replay(session, acting, row, places, clock())
            return go(address_of(row.incident_id), "replay")

    @made.post("/replays/cancel")
    def cancel(acting: Acting = operating) -> Response:
        with catalog.writing() as session:
            job = jobs.job(session, acting.form.one("job"))
            if job is None:
                raise not_found("such replay")
            jobs.cancel(session, actor_of(acting), job.id, clock())
            return go(address_of(job.incident_id), "cancelled")

    return made


def evidence_in(places: BundlePlaces, row: BundleRow, names: Iterable[str], pieces: PiecesOf | None) -> Evidence:
    return evidence_of(lambda: places.open(row, "dashboard"), names, pieces)


def bundle_values(
    places: BundlePlaces, values: Mapping[str, Any], text_of: str, pieces: PiecesOf | None
) -> dict[str, Any]:
    """Of the bundle that the page shows: with its text where `text_of` asks for it."""
    shown = chosen_bundle(values["bundles"], text_of)
    names = [victim.name for victim in values["victims"]]
    return {
        "shown": shown,
        "with_text": bool(text_of),
        "evidence": None if shown is None else evidence_in(places, shown, names, pieces if text_of else None),
        "commands": [] if shown is None else commands(str(places.find(shown) or shown.path)),
    }


def ask_for_replay(session: Session, acting: Acting, row: BundleRow, places: BundlePlaces, now: float) -> None:
    known = evidence_in(places, row, (), None)
    if known.problem:
        raise Problem(409, "That bundle cannot be replayed", known.problem)
    target = target_of(known.device, row, register.replica(session, row.replica))
    jobs.submit(session, actor_of(acting), bundle=row.id, incident_id=row.incident_id, target=target, time=now)


def incident_row(session: Session, identifier: str) -> IncidentRow:
    row = session.get(IncidentRow, identifier) if len(identifier) <= 64 and "\0" not in identifier else None
    if row is None:
        raise not_found("such incident")
    return row


def bundle_row(session: Session, identifier: str) -> BundleRow:
    row = session.get(BundleRow, identifier) if len(identifier) <= 256 and "\0" not in identifier else None
    if row is None:
        raise not_found("such bundle")
    return row


def chosen_bundle(lines: list[Any], wanted: str) -> BundleRow | None:
    """The one that was asked for, else the first captured: the nearest to the cause."""
    rows: list[BundleRow] = [line.row for line in lines]
    return next((row for row in rows if row.id == wanted), rows[-1] if rows else None)


def target_of(device: str, row: BundleRow, replica: ReplicaRow | None) -> str:
    """Which worker may take it: one here for a CPU; else the replica itself where it is drained, or one on a device of
    the same class."""
    if device in ("", "cpu"):
        return "local"
    if replica is not None and replica.state == "drained":
        return f"replica:{row.replica}"
    return f"device:{replica.device_name if replica is not None and replica.device_name else device}"
