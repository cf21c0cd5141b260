"""The five dashboards: is all well, what happened, how the engine does, what drifts, and the black box itself."""

from __future__ import annotations

from pathlib import Path

from checkengine.dashboards.grafana.black_box import BLACK_BOX
from checkengine.dashboards.grafana.drift import DRIFT
from checkengine.dashboards.grafana.engine import ENGINE
from checkengine.dashboards.grafana.incidents import INCIDENT
from checkengine.dashboards.grafana.overview import OVERVIEW

FOLDER = Path(__file__).parent
DASHBOARDS = (OVERVIEW, INCIDENT, ENGINE, DRIFT, BLACK_BOX)


def files() -> dict[Path, str]:
    """Every dashboard's JSON by its file."""
    return {FOLDER / f"{board.uid}.json": board.to_json() for board in DASHBOARDS}
