"""Switches: a guard off or on, a capture armed, the brake, a drained replica. An order is written down; each replica
reads it within seconds and tells when it has obeyed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from checkengine.dashboards.web import words
from checkengine.dashboards.web.access import Access, Acting
from checkengine.dashboards.web.overview import GuardLine, guard_lines
from checkengine.dashboards.web.pages import Pages, go
from checkengine.dashboards.web.people import Person, Role
from checkengine.dashboards.web.problems import Problem
from checkengine.dashboards.web.render import query
from checkengine.dashboards.web.replicas_view import Replica, guards_of, replicas
from checkengine.dashboards.web.triage import actor_of
from checkengine.guards.errors import UserError
from checkengine.replay.catalog import Catalog, controls, register
from checkengine.replay.catalog.counts import activity
from checkengine.replay.catalog.fleet import EVERY_REPLICA, ControlRow
from checkengine.replay.catalog.models import CauseRow

SAMPLES = 50
SPANS = {"1h": 3600.0, "24h": 86400.0, "7d": 7 * 86400.0}
MOST_CONDITION = 500
CAPTURE_SECONDS = {"10 minutes": 600.0, "1 hour": 3600.0, "8 hours": 8 * 3600.0}
LEVELS = ("L3", "L2", "L1", "L0")


@dataclass(frozen=True, slots=True)
class Order:
    row: ControlRow
    words: str
    obeyed: int
    of: int
    """Replicas that it concerns and that are there."""


def router(pages: Pages, access: Access, catalog: Catalog, clock: Callable[[], float]) -> APIRouter:
    made = APIRouter()
    looking, operating = access.look(), access.act(Role.OPERATOR)

    @made.get("/controls")
    def show(request: Request, replica: str = "", person: Person = looking) -> Response:
        now = clock()
        with catalog.reading() as session:
            fleet = [each for each in replicas(session, now) if each.state != "gone"]
            chosen = [each for each in fleet if each.row.name == replica] or fleet
            values = {
                "now": now,
                "fleet": fleet,
                "replica": replica if any(each.row.name == replica for each in fleet) else "",
                "guards": guards_in(session, chosen, now),
                "orders": [order_of(row, fleet) for row in controls.history(session, limit=30)],
                "levels": LEVELS,
                "durations": list(CAPTURE_SECONDS),
            }
        return pages.answer(request, "controls.html", person, "Controls", "/controls", values)

    @made.post("/controls")
    def order(acting: Acting = operating) -> Response:
        replica = acting.form.one("replica").strip()
        back = f"/controls{query({'replica': replica})}"
        with catalog.writing() as session:
            give(session, acting, replica or EVERY_REPLICA, clock())
        return go(back, "ordered")

    @made.get("/controls/{guard:path}")
    def would_have_stopped(request: Request, guard: str, span: str = "24h", person: Person = looking) -> Response:
        now, seconds = clock(), SPANS.get(span, SPANS["24h"])
        with catalog.reading() as session:
            values = report(session, guard.replace("\0", "")[:128], now - seconds, now)
        values |= {"now": now, "span": span if span in SPANS else "24h", "spans": list(SPANS)}
        return pages.answer(request, "would_stop.html", person, f"Guard {guard[:80]}", "/controls", values)

    return made


def guards_in(session: Session, fleet: list[Replica], now: float) -> list[GuardLine]:
    """Those that a replica tells of."""
    known = {name for each in fleet for name in guards_of(each.row)}
    return sorted((line for line in guard_lines(session, fleet, now) if line.name in known), key=lambda line: line.name)


def give(session: Session, acting: Acting, replica: str, now: float) -> None:
    """Problem for what cannot be ordered."""
    form = acting.form
    subject, _, state = form.one("order").partition(" ")
    desired: dict[str, Any] = {"state": state}
    expires = None
    if subject == "capture" and state == "arm":
        seconds = CAPTURE_SECONDS.get(form.one("duration"))
        when = form.one("when").strip()
        if seconds is None or not 0 < len(when) <= MOST_CONDITION or form.one("level") not in LEVELS:
            raise Problem(400, "That cannot be armed", "It needs a condition, a level and a duration of the form's.")
        desired |= {
            "when": when,
            "level": form.one("level"),
            "seconds": seconds,
            "most": most_of(form.one("most", "3")),
        }
        expires = now + seconds
    name = form.one("name").strip()
    try:
        controls.ask(
            session,
            actor_of(acting),
            replica=replica,
            subject=subject,
            name=name,
            desired=desired,
            time=now,
            expires=expires,
        )
    except UserError as error:
        raise Problem(400, "That cannot be ordered", str(error)) from None


def most_of(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:4]) <= 100:
        raise Problem(400, "That cannot be armed", "Captures at most: a number from 1 to 100.")
    return int(text)


def order_of(row: ControlRow, fleet: list[Replica]) -> Order:
    concerned = [each for each in fleet if row.replica in (EVERY_REPLICA, each.row.name) and each.state != "silent"]
    obeyed = sum(1 for each in concerned if each.row.applied >= row.id)
    desired = row.desired if isinstance(row.desired, Mapping) else {}
    told = f"{row.subject} {row.name} {desired.get('state', '')}".replace("  ", " ")
    if "when" in desired:
        seconds = desired.get("seconds")
        held = words.duration(seconds) if isinstance(seconds, int | float) else ""
        told += f" where {desired['when']}, {desired.get('level', '')}, for {held}"
    return Order(row, told, obeyed, len(concerned))


def report(session: Session, guard: str, since: float, now: float) -> dict[str, Any]:
    """What the guard would have stopped on this traffic, had it been allowed to, with samples to judge."""
    from checkengine.dashboards.web import charts

    samples = register.would_have_stopped(session, guard, since=since, limit=SAMPLES)
    found = activity(session, since=since, until=now, points=48).get(guard, [0] * 48)
    fleet = [each for each in replicas(session, now) if each.state != "gone"]
    states = [state for each in fleet if (state := guards_of(each.row).get(guard)) is not None]
    total = sum(value for state in states if isinstance(value := state.get("would_have_stopped"), int))
    return {
        "guard": guard,
        "samples": samples,
        "full": len(samples) == SAMPLES,
        "findings": sum(found),
        "chart": charts.sparkline(found, f"Findings of {guard}"),
        "would": total,
        "actions": sorted({str(state.get("action", "")) for state in states} - {""}),
        "known": bool(states) or bool(session.query(CauseRow.id).where(CauseRow.guard == guard).first()),
        "kinds": sorted({row.kind for row in samples}),
    }
