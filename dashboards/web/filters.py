"""The incident list's filter, as it stands in the address: what is shared or saved is the address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import QueryParams

from checkengine.dashboards.web.problems import Problem
from checkengine.guards.errors import UserError
from checkengine.guards.finding import Severity
from checkengine.replay.catalog.incident_list import STATUSES, Cursor, IncidentFilter

PLACES = ("guard", "kind", "model", "replica", "device", "driver", "kernel")
"""Columns of a cause that can be filtered by."""
TIMES = {"1h": 3600.0, "24h": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
NAMES = ("status", *PLACES, "prefix", "severity", "assignee", "request", "time", "fingerprint")
LIVING = ("open", "acknowledged")
"""What the list shows where the address says nothing."""
MOST_QUERY = 2000


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the address asks for."""

    values: Mapping[str, str]
    """Names of NAMES that have a value."""
    filter: IncidentFilter
    after: Cursor | None


def chosen_of(params: QueryParams, now: float) -> Chosen:
    """Problem 400 for a page of the list that nobody made; other values match or do not."""
    values = {name: params[name] for name in NAMES if params.get(name)}
    try:
        after = Cursor.parse(text) if (text := params.get("after")) else None
    except UserError as error:
        raise Problem(400, "There is no such page", str(error)) from None
    return Chosen(values, filter_of(values, now), after)


def filter_of(values: Mapping[str, str], now: float) -> IncidentFilter:
    status = values.get("status", "")
    assignee = values.get("assignee")
    places: dict[str, Any] = {name: (values[name],) for name in (*PLACES, "fingerprint") if name in values}
    return IncidentFilter(
        **places,
        status=() if status == "all" else (status,) if status in STATUSES else LIVING,
        prefix=values.get("prefix", "") if values.get("prefix") in ("hit", "miss") else "",
        least_severity=severity_of(values.get("severity", "")),
        assignee="" if assignee == "nobody" else assignee,
        request=values.get("request", "").strip(),
        since=now - TIMES[values["time"]] if values.get("time") in TIMES else None,
    )


def severity_of(name: str) -> int | None:
    return int(Severity[name.upper()]) if name.upper() in Severity.__members__ else None


def clean_query(text: str) -> dict[str, str]:
    """Of a saved view: only names of NAMES, whatever somebody posted."""
    if len(text) > MOST_QUERY:
        raise Problem(400, "That view is too long", f"At most {MOST_QUERY} characters.")
    return {name: value for name, value in parse_qsl(text.removeprefix("?")) if name in NAMES and value}
