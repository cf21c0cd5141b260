"""Drift: each series with its e-value on a logarithmic scale, the threshold, and the slices that moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from markupsafe import Markup
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from checkengine.dashboards.web import charts, words
from checkengine.dashboards.web.access import Access
from checkengine.dashboards.web.drift_view import Series, all_series, moved, newest_requests
from checkengine.dashboards.web.overview import drifting
from checkengine.dashboards.web.pages import Pages
from checkengine.dashboards.web.people import Person
from checkengine.dashboards.web.problems import not_found
from checkengine.dashboards.web.traffic import Kept
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.fleet import RequestRow
from checkengine.replay.catalog.models import FindingRow

KEPT_SECONDS = 30.0
Known = tuple[Sequence[RequestRow], list[Series]]


def router(pages: Pages, access: Access, catalog: Catalog, clock: Callable[[], float]) -> APIRouter:
    made, kept = APIRouter(), Kept[Known](KEPT_SECONDS, clock)
    looking = access.look()

    def known(session: Session) -> Known:
        rows = newest_requests(session)
        return rows, all_series(rows)

    @made.get("/drift")
    def show(request: Request, person: Person = looking) -> Response:
        now = clock()
        with catalog.reading() as session:
            rows, series = kept.get(lambda: known(session))
            told = drifting(session, now)
        values = {"now": now, "requests": len(rows), "told": told, "series": [(each, drawn(each)) for each in series]}
        return pages.answer(request, "drift.html", person, "Drift", "/drift", values)

    @made.get("/drift/{name:path}")
    def one(request: Request, name: str, person: Person = looking) -> Response:
        now = clock()
        with catalog.reading() as session:
            rows, series = kept.get(lambda: known(session))
            findings = alarms_told(session, name)
        mine = next((each for each in series if each.name == name), None)
        if mine is None and not findings:
            raise not_found("such series")
        values: dict[str, Any] = {
            "now": now,
            "name": name,
            "findings": findings,
            "each": mine,
            "moved": None,
            "chart": "",
        }
        if mine is not None:
            values["chart"] = drawn(mine)
        since = last_alarm(mine, findings)
        values["moved"] = moved(rows, since) if since is not None else None
        values["since"] = since
        return pages.answer(request, "drift_series.html", person, f"Drift of {name[:80]}", "/drift", values)

    return made


def last_alarm(series: Series | None, findings: Sequence[FindingRow]) -> float | None:
    times = [row.time for row in findings] + ([alarm.time for alarm in series.alarms] if series is not None else [])
    return max(times, default=None)


def alarms_told(session: Session, name: str) -> list[FindingRow]:
    """Findings that a guard has put on record, newest first."""
    query = sa.select(FindingRow).where(FindingRow.kind == f"drift.{name}").order_by(FindingRow.time.desc()).limit(50)
    return list(session.scalars(query)) if "\0" not in name else []


def drawn(series: Series) -> Markup:
    top = max((point.log_evidence for point in series.points), default=0.0)
    told = f"{series.words}: e-value over time, at most {words.power(top)}, threshold {words.power(series.threshold)}"
    return charts.evidence_chart(series.points, series.threshold, told)
