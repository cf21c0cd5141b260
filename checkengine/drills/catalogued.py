"""The demo's spool, brought into its catalog as a collector does."""

from __future__ import annotations

from checkengine.config import Settings
from checkengine.dashboards.collector import Collector
from checkengine.replay.catalog import Catalog


def collect_into_catalog(settings: Settings) -> None:
    collector = Collector(settings.spool.directory, lambda: Catalog.open(settings.catalog.url))
    try:
        collector.run_once()
    finally:
        collector.close()
