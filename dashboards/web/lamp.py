"""The lamp beside the name, on every page: is anything wrong now?"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from checkengine.dashboards.web.replicas_view import replicas
from checkengine.dashboards.web.traffic import Kept
from checkengine.guards.finding import Severity
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.incident_list import IncidentFilter, incident_page

KEPT_SECONDS = 2.0


def lamp(catalog: Catalog, clock: Callable[[], float]) -> Callable[[], str]:
    """bad: an ERROR is open or a replica is silent; warn: something else is open or a replica needs a look; good.
    Empty where the catalog cannot be read."""
    kept = Kept[str](KEPT_SECONDS, clock)

    def look() -> str:
        try:
            with catalog.reading() as session:
                worst = incident_page(session, IncidentFilter(status=("open",), least_severity=Severity.ERROR), limit=1)
                tones = {each.tone for each in replicas(session, clock())}
                if worst.rows or "bad" in tones:
                    return "bad"
                open_ones = incident_page(session, IncidentFilter(status=("open",)), limit=1)
                return "warn" if open_ones.rows or "warn" in tones else "good"
        except SQLAlchemyError:
            return ""

    return lambda: kept.get(look)
