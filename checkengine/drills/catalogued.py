"""The demo's spool, brought into its catalog as a collector does, and its verdicts as a worker does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from checkengine.config import Settings
from checkengine.dashboards.collector import Collector
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.ingest import record_replay
from checkengine.replay_worker import NOT_KEPT


@dataclass(frozen=True, slots=True)
class Judged:
    bundle: str
    """Name of its folder."""
    time: float
    """Unix seconds."""
    exit_code: int
    result: dict[str, Any]
    """As `checkengine replay --json` prints it."""


def collect_into_catalog(settings: Settings, judged: Sequence[Judged] = ()) -> None:
    collector = Collector(settings.spool.directory, lambda: Catalog.open(settings.catalog.url))
    try:
        collector.run_once()
    finally:
        collector.close()
    keep_verdicts(settings, judged)


def keep_verdicts(settings: Settings, judged: Sequence[Judged]) -> None:
    catalog = Catalog.open(settings.catalog.url)
    with catalog.writing() as session:
        for each in judged:
            short = {name: value for name, value in each.result.items() if name not in NOT_KEPT}
            verdict = each.result["verdict"]["kind"]
            record_replay(
                session, bundle=each.bundle, time=each.time, verdict=verdict, exit_code=each.exit_code, result=short
            )
    catalog.close()
