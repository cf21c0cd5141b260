"""Processes for the collector's tests, each killed from outside. Before every commit, deletion and written record
they send one sign of life."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path

import sqlalchemy as sa

from checkengine.dashboards.collector import Collector
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards.events import FindingRaised
from checkengine.guards.finding import Finding, Severity
from checkengine.replay.catalog import Catalog


def finding(incident: str, sequence: str, time: float = 1.0) -> FindingRaised:
    found = Finding("logits.nonfinite", sequence, Severity.ERROR, 4, 2, "nonfinite", 1, {"nan": 3})
    return FindingRaised(found, incident, time, True)


def collect_until_killed(spools: Path, database: Path, told: Connection) -> None:
    real_unlink = os.unlink

    def unlink(path: Path) -> None:
        told.send("")
        real_unlink(path)
        told.send("")

    Path.unlink = lambda self, missing_ok=False: unlink(self)  # type: ignore[assignment,misc]
    collector = Collector(spools, lambda: Catalog.open(database))
    for moment in ("commit", "begin"):
        sa.event.listen(sa.Engine, moment, lambda connection: told.send(""))
    while True:
        collector.run_once()


def write_until_killed(spools: Path, told: Connection) -> None:
    """Sends each record's number once it is appended."""
    writer = SpoolWriter(spools, rotate_bytes=2000, sync="never")
    number = 0
    while True:
        number += 1
        writer.handle(finding("inc-2", f"{writer.boot} {number}"))
        told.send((writer.boot, number))
