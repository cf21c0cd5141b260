"""`checkengine worker`: replays that the dashboard asked for, on this machine."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import typer

app = typer.Typer(rich_markup_mode=None)


@app.command()
def worker(
    store: str | None = typer.Option(None, help="Path or URL of the catalog. Default: [catalog] url"),
    bundles: list[Path] = typer.Option([], help="Folder of bundles; may be given again. Default: [capture] directory"),
    target: list[str] = typer.Option(
        [], help="What it may take: local, device:NAME, replica:NAME. Default: the class of this machine's device."
    ),
    config: Path | None = typer.Option(None, help="checkengine.toml. Default: the one in the current directory"),
) -> None:
    """Take replays that were asked for on the dashboard, one at a time, until SIGTERM.

    A replay of a GPU's bundle runs on a host with the same class of device: start this there, with the folder in which
    the bundles lie. The dashboard itself takes those for a CPU.
    """
    from checkengine.config import load_settings
    from checkengine.replay.catalog import Catalog
    from checkengine.replay.catalog.catalog import SETTING
    from checkengine.replay_worker import LOCAL, ReplayWorker

    settings = load_settings(config)
    wanted = tuple(target) or targets_here() or LOCAL
    url, named = (settings.catalog.url, SETTING) if store is None else (store, "--store")
    catalog = Catalog.open(url, named=named)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    taking = ReplayWorker(catalog, tuple(bundles) or (settings.capture.directory,), wanted)
    taking.start()
    typer.echo(f"taking replays for {', '.join(wanted)}", err=True)
    try:
        stop.wait()
    finally:
        taking.close()
        catalog.close()


def targets_here() -> tuple[str, ...]:
    """The class of the device that is here; none on a machine without one."""
    from checkengine.engine_shim.devices import device_facts

    device = device_facts()
    return (f"device:{device.name}",) if device.uuid else ()
