"""Grafana dashboards as small dataclasses, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["timeseries", "stat", "table", "heatmap", "bargauge"]
SCHEMA = 39
"""Of Grafana 10 and 11."""
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
"""Chosen in the dashboard, so that it does not matter how a data source is called."""
BAD_ABOVE_ZERO: tuple[tuple[float | None, str], ...] = ((None, "green"), (1, "red"))


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    about: str = ""
    """What it tells, and what to do when it looks wrong."""
    thresholds: Sequence[tuple[float | None, str]] = ((None, "green"),)
    maximum: float | None = None
    logarithmic: bool = False
    exemplars: bool = False
    mappings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    rows: Sequence[Row]
    about: str
    refresh: str = "30s"

    def queries(self) -> list[str]:
        return [query.expr for row in self.rows for panel in row.panels for query in panel.queries]

    def to_json(self) -> str:
        return json.dumps(as_model(self), indent=1, ensure_ascii=False) + "\n"


def as_model(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["checkengine"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "refresh": dashboard.refresh,
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "links": [{"type": "dashboards", "tags": ["checkengine"], "title": "checkengine", "asDropdown": True}],
        "templating": {"list": [data_source(), label("job", "checkengine_build_info"), label("instance", INSTANCES)]},
        "annotations": {"list": [firing_alerts()]},
        "panels": placed(dashboard.rows),
    }


INSTANCES = 'checkengine_build_info{job=~"$job"}'


def data_source() -> dict[str, Any]:
    return {"name": "DS_PROMETHEUS", "label": "Data source", "type": "datasource", "query": "prometheus"}


def label(name: str, series: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({series}, {name})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def firing_alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Checkengine.*",alertstate="firing"}',
        "titleFormat": "{{alertname}}",
    }


def placed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Panels fill each row from left to right."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        panels.append(row_model(len(panels) + 1, row.title, top))
        left, top, height = 0, top + 1, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            panels.append(panel_model(len(panels) + 1, panel, left, top))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return panels


def row_model(identifier: int, title: str, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {"id": identifier, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def panel_model(identifier: int, panel: Panel, left: int, top: int) -> dict[str, Any]:
    return {
        "id": identifier,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
        "targets": [target(index, query, panel) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": defaults(panel), "overrides": []},
        "options": options(panel),
    }


def target(index: int, query: Query, panel: Panel) -> dict[str, Any]:
    instant = panel.kind in ("stat", "table", "bargauge")
    return {
        "refId": chr(ord("A") + index),
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "format": {"heatmap": "heatmap", "table": "table"}.get(panel.kind, "time_series"),
        "instant": instant,
        "range": not instant,
        "exemplar": panel.exemplars,
    }


def defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"value": value, "color": color} for value, color in panel.thresholds]
    found: dict[str, Any] = {"unit": panel.unit, "min": None if panel.logarithmic else 0}
    found["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.maximum is not None:
        found["max"] = panel.maximum
    if panel.logarithmic:
        found["custom"] = {"scaleDistribution": {"type": "log", "log": 10}}
    if panel.mappings:
        words = {value: {"text": text} for value, text in panel.mappings.items()}
        found["mappings"] = [{"type": "value", "options": words}]
    return found


def options(panel: Panel) -> dict[str, Any]:
    if panel.kind in ("stat", "bargauge"):
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "textMode": "auto"}
    if panel.kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if panel.kind == "heatmap":
        return {"calculate": False, "yAxis": {"unit": panel.unit}}
    return {}
