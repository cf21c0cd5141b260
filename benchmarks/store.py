"""The store at its size: a million incidents to page through; fifty engines that write while they are killed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checkengine.benchmarks.figure import figure
from checkengine.benchmarks.postgres import PostgresServer
from checkengine.benchmarks.store_crashes import Plan, crash_store, fork_context
from checkengine.benchmarks.store_pages import fill, page_figures
from checkengine.replay.catalog import Catalog
from checkengine.replay.catalog.ingest import ingest
from checkengine.replay.spool_format import SpoolRecord

INCIDENTS, QUICK_INCIDENTS = 1_000_000, 50_000
CRASHES = Plan(writers=50, findings=20_000, kills=4, server_kills=10, told_every=100)
QUICK_CRASHES = Plan(writers=8, findings=1_000, kills=3, server_kills=3, told_every=10)
BATCHES, BATCH = 20, 1000


def store_figures(quick: bool = False) -> list[dict[str, Any]]:
    """Most of a quarter of an hour goes into filling two databases; `quick` takes a minute and is no proof."""
    incidents = QUICK_INCIDENTS if quick else INCIDENTS
    found: list[dict[str, Any]] = []
    for database in ("sqlite", "postgresql"):
        with catalog_of(database) as catalog:
            found.append(ingest_figure(catalog, database))
            fill(catalog, incidents)
            found += page_figures(catalog, database)
    return found


@contextmanager
def catalog_of(database: str) -> Iterator[Catalog]:
    """With the durability that it has in use: every commit is on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        server = PostgresServer(quick=False) if database == "postgresql" else None
        catalog = Catalog.open(server.url if server is not None else Path(folder) / "catalog.db")
        try:
            yield catalog
        finally:
            catalog.close()
            if server is not None:
                server.close()


def ingest_figure(catalog: Catalog, database: str) -> dict[str, Any]:
    """Findings a second, in batches as a collector makes them, each batch one durable transaction."""
    batches = [[record(batch * BATCH + n) for n in range(BATCH)] for batch in range(BATCHES)]
    began = time.perf_counter()
    for records in batches:
        with catalog.writing() as session:
            ingest(session, records)
    return figure(
        f"store.{database}.ingest", BATCHES * BATCH / (time.perf_counter() - began), "findings/s", 2000, at_least=True
    )


def record(number: int) -> SpoolRecord:
    data = {
        "incident": f"inc-{number % 50}",
        "primary": True,
        "kind": "logits.nonfinite",
        "severity": 2,
        "step": number,
        "token": 2,
        "guard": "nonfinite",
        "version": 1,
        "evidence": {"nan": 3},
    }
    return SpoolRecord("b" * 16, number, "finding", float(number), f"host:{number % 10}", f"s-{number}", data)


def crash_figures(quick: bool = False) -> list[dict[str, Any]]:
    """A million findings of engines that are killed, into a server that is killed; `quick` 8,000 in half a minute."""
    plan = QUICK_CRASHES if quick else CRASHES
    server = PostgresServer()

    def kill_server() -> None:
        server.kill()
        server.start()

    try:
        with tempfile.TemporaryDirectory() as folder:
            outcome = crash_store(plan, Path(folder), server.url, fork_context(), kill_server)
    finally:
        server.close()
    # A short run is mostly the start of processes: its speed says nothing.
    speed = [figure("store.crashes.speed", outcome.found / outcome.seconds, "findings/s", 500, at_least=True)]
    return ([] if quick else speed) + [
        figure("store.crashes.told", outcome.told, "findings", plan.writers * plan.findings, at_least=True),
        figure("store.crashes.lost", outcome.lost, "findings", 0),
        figure("store.crashes.doubled", outcome.doubled, "findings", 0),
        figure("store.crashes.miscounted", outcome.miscounted, "incidents", 0),
        figure("store.crashes.writers_killed", outcome.writer_kills, "kills", plan.writers * plan.kills, at_least=True),
        figure("store.crashes.server_killed", outcome.server_kills, "kills", plan.server_kills, at_least=True),
    ]
