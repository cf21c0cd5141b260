"""`checkengine collect`: the collector as a process of its own."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import typer

app = typer.Typer(rich_markup_mode=None)


@app.command()
def collect(
    config: Path | None = typer.Option(None, help="checkengine.toml. Default: the one in the current directory"),
    once: bool = typer.Option(False, "--once", help="One round, then end; exit 1 where the catalog is down."),
    as_json: bool = typer.Option(False, "--json", help="With --once: print one JSON object."),
) -> None:
    """Bring findings from the spools into the catalog, until SIGTERM. One collector serves a directory at a time."""
    from checkengine.config import load_settings
    from checkengine.dashboards.fleet_watch import FleetWatch
    from checkengine.guards import EventBus, IncidentBook
    from checkengine.replica import replica_name
    from checkengine.storage import make_collector, open_spool

    settings, bus = load_settings(config), EventBus()
    watch = FleetWatch(settings.guards, bus.publish, IncidentBook())
    collector = make_collector(settings, watch=watch)
    spool = None if once else open_spool(settings, bus, f"collector:{replica_name()}")
    try:
        if once:
            done = collector.try_once()
            if as_json:
                typer.echo(json.dumps({"up": done is not None, "records": done.records if done else 0}))
            else:
                typer.echo(f"{done.records} records" if done else "the catalog is down; the spools keep their records")
            raise typer.Exit(0 if done else 1)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        typer.echo(f"collecting {settings.spool.directory} into the catalog", err=True)
        collector.run(stop, settings.catalog.collect_seconds)
    finally:
        bus.close()
        for part in (spool, watch, collector):
            if part is not None:
                part.close()
