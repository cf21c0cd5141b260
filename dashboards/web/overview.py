"""The first page: is everything well, and if not, what is it and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from markupsafe import Markup
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from checkengine.dashboards.web import charts, words
from checkengine.dashboards.web.access import Access
from checkengine.dashboards.web.lines import Line, lines_of
from checkengine.dashboards.web.pages import Pages
from checkengine.dashboards.web.people import Person
from checkengine.dashboards.web.replicas_view import Replica, guards_of, replicas
from checkengine.dashboards.web.settings import DashboardSettings
from checkengine.dashboards.web.traffic import DAY, POINTS, Kept, Traffic, traffic
from checkengine.replay.catalog import Catalog, queries
from checkengine.replay.catalog.counts import activity
from checkengine.replay.catalog.incident_list import IncidentFilter, incident_page
from checkengine.replay.catalog.models import BundleRow, FindingRow, IncidentRow

SHOWN = 8
"""Incidents that the first page lists."""
HOUR_POINTS = POINTS // 24
KEPT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Headline:
    tone: str
    """good, warn or bad."""
    words: str
    detail: str


@dataclass(frozen=True, slots=True)
class Tile:
    title: str
    value: str
    note: str
    chart: Markup
    tone: str = ""


@dataclass(frozen=True, slots=True)
class GuardLine:
    name: str
    hour: int
    day: int
    chart: Markup
    actions: str
    off: int
    braked: int
    would_have_stopped: int

    @property
    def loud(self) -> bool:
        """Found something, or is not as it should be."""
        return bool(self.day or self.off or self.braked or self.would_have_stopped)


def headline(lines: list[Line], more: bool, fleet: list[Replica]) -> Headline:
    """What an on-call engineer reads first."""
    urgent = [line for line in lines if line.severity == "error"]
    silent = [each for each in fleet if each.tone == "bad"]
    serving = sum(1 for each in fleet if each.state == "serving")
    there = sum(1 for each in fleet if each.state != "gone")
    detail = f"{serving} of {words.count(there, 'replica')} serving." if there else ""
    if lines:
        number = (
            f"{len(lines)} or more incidents are" if more else words.count(len(lines), "incident is", "incidents are")
        )
        return Headline("bad" if urgent or silent else "warn", f"{number} open", detail)
    if silent:
        return Headline("bad", words.count(len(silent), "replica is silent", "replicas are silent"), detail)
    if any(each.tone == "warn" for each in fleet):
        return Headline("warn", "No incident is open, but a replica needs a look", detail)
    return Headline("good", "Everything is well", detail)


def tiles(known: Traffic, session: Session, settings: DashboardSettings, now: float) -> list[Tile]:
    return [clean_tile(known, settings), requests_tile(known), ttft_tile(known, settings), capture_tile(session, now)]


def clean_tile(known: Traffic, settings: DashboardSettings) -> Tile:
    day, objective = known.clean_ratio(POINTS), settings.clean_objective
    burn = known.burn(HOUR_POINTS, objective)
    note = "no request was told yet" if day is None else f"objective {words.share(objective)}"
    tone = ""
    if burn is not None and burn > 1:
        note, tone = f"budget burns {burn:.0f} times too fast this hour", "bad" if burn >= 14.4 else "warn"
    chart = charts.ratio_line(known.clean, objective, "Share of clean generations over 24 hours")
    return Tile("Clean generations, 24 h", words.share(day), note, chart, tone)


def requests_tile(known: Traffic) -> Tile:
    chart = charts.sparkline(known.requests, "Requests over 24 hours")
    hour = sum(known.requests[-HOUR_POINTS:])
    return Tile("Requests, 24 h", f"{sum(known.requests):,}", f"{hour:,} in the last hour", chart)


def ttft_tile(known: Traffic, settings: DashboardSettings) -> Tile:
    p95 = known.ttft_p95
    tone = "warn" if p95 is not None and p95 > settings.ttft_seconds else ""
    chart = charts.sparkline(known.ttft, "Mean time to first token over 24 hours")
    value = "–" if p95 is None else words.duration(p95)
    return Tile("Time to first token, p95", value, f"objective {words.duration(settings.ttft_seconds)}", chart, tone)


def capture_tile(session: Session, now: float) -> Tile:
    """Of incidents begun today, how many have a bundle."""
    begun = sa.select(IncidentRow.id).where(IncidentRow.last_seen >= now - DAY).limit(1000).subquery()
    total = session.scalar(sa.select(sa.func.count()).select_from(begun)) or 0
    having = sa.select(sa.func.count(sa.distinct(BundleRow.incident_id))).where(
        BundleRow.incident_id.in_(sa.select(begun.c.id))
    )
    kept = session.scalar(having) or 0
    value = words.share(kept / total) if total else "–"
    coverage = queries.audit_coverage(session)
    judged = sum(number(row.data, "judged") for row in coverage)
    note = f"{words.count(judged, 'healthy-looking step')} audited" if coverage else "no step was audited"
    return Tile("Incidents with a bundle, 24 h", value, note, Markup(""))


def guard_lines(session: Session, fleet: list[Replica], now: float) -> list[GuardLine]:
    """Of every guard that a replica tells of or that found something today, the busiest first."""
    found = activity(session, since=now - DAY, until=now, points=POINTS)
    told: dict[str, list[Mapping[str, Any]]] = {}
    for each in fleet:
        if each.state != "gone":
            for name, state in guards_of(each.row).items():
                told.setdefault(name, []).append(state)
    lines = [guard_line(name, found.get(name, [0] * POINTS), told.get(name, [])) for name in found.keys() | told.keys()]
    return sorted(lines, key=lambda line: (-line.hour, -line.day, line.name))


def guard_line(name: str, series: list[int], states: list[Mapping[str, Any]]) -> GuardLine:
    chart = charts.sparkline(series, f"Findings of {name} over 24 hours")
    actions = ", ".join(sorted({str(state["action"]) for state in states if state.get("action")}))
    off = sum(1 for state in states if state.get("active") is False)
    braked = sum(1 for state in states if state.get("braked"))
    would = sum(number(state, "would_have_stopped") for state in states)
    return GuardLine(name, sum(series[-HOUR_POINTS:]), sum(series), chart, actions, off, braked, would)


def number(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return int(value) if isinstance(value, int) else 0


def drifting(session: Session, now: float) -> list[tuple[str, float, int]]:
    """Series, when it last gave an alarm, and how often today."""
    mine = (FindingRow.kind >= "drift.", FindingRow.kind < "drift/", FindingRow.time >= now - DAY)
    query = sa.select(FindingRow.kind, sa.func.max(FindingRow.time), sa.func.count()).where(*mine)
    rows = session.execute(query.group_by(FindingRow.kind).order_by(sa.func.max(FindingRow.time).desc()).limit(20))
    return [(str(kind).removeprefix("drift."), float(when), int(count)) for kind, when, count in rows]


def router(pages: Pages, access: Access, catalog: Catalog, clock: Callable[[], float]) -> APIRouter:
    made, kept = APIRouter(), Kept[Traffic](KEPT_SECONDS, clock)
    looking = access.look()
    settings = pages.auth.settings

    def values(now: float) -> dict[str, Any]:
        with catalog.reading() as session:
            page = incident_page(session, IncidentFilter(status=("open",)), limit=SHOWN)
            lines, fleet = lines_of(session, page.rows), replicas(session, now)
            last = session.scalar(sa.select(sa.func.max(FindingRow.time)))
            known = kept.get(lambda: traffic(session, now))
            guards = guard_lines(session, fleet, now)
            lines.sort(key=lambda line: ("error", "warning", "info").index(line.severity))
            return {
                "now": now,
                "headline": headline(lines, page.next is not None, fleet),
                "last": last,
                "lines": lines,
                "more": page.next is not None,
                "tiles": tiles(known, session, settings, now),
                "loud": [line for line in guards if line.loud],
                "quiet": [line for line in guards if not line.loud],
                "fleet": fleet,
                "drifting": drifting(session, now),
            }

    @made.get("/")
    def overview(request: Request, person: Person = looking) -> Response:
        told = values(clock())
        return pages.answer(request, "overview.html", person, told["headline"].words, "/", told)

    return made
