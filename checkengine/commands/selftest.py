"""`checkengine selftest`: check this installation on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import typer

app = typer.Typer(rich_markup_mode=None)

NO_DEVICE = 3
"""Exit code of --on-device without a device: the rest passed, and nothing was proven of a device."""


@app.command()
def selftest(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
    chosen: str = typer.Option("", "--class", help="Plant all faults of this class, or the one of this name."),
    on_device: bool = typer.Option(False, "--on-device", help="Prove it on this machine's accelerator, with a log."),
    log: Path = typer.Option(Path("checkengine-selftest.log"), "--log", help="Where --on-device writes its log."),
) -> None:
    """Check this installation on this machine. Exit 1 when a figure misses its target, 3 where --on-device finds no
    device and all else passed."""
    from checkengine.figures import passed, print_report, report

    figures, device = [], ""
    if on_device:
        from checkengine.selftest_device import device_figures, device_name

        device = device_name()
        figures += device_figures()
    if not on_device or not device:
        from checkengine.selftest import selftest_figures
        from checkengine.selftest_faults import QUICK, fault_figures, names_of
        from checkengine.selftest_motion import MOTION_CLASSES, class_figures, quick_figures

        figures += [] if chosen else selftest_figures()
        if chosen in MOTION_CLASSES:
            figures += class_figures(chosen)
        else:
            figures += fault_figures(names_of(chosen) if chosen else QUICK)
            figures += [] if chosen else quick_figures()
    measured = report("selftest" + (" --on-device" if on_device else ""), figures)
    if as_json:
        typer.echo(json.dumps(measured))
    else:
        print_report(measured)
    if on_device:
        from checkengine.selftest_device import write_log

        write_log(log, measured)
        if not device:
            typer.echo("there is no accelerator here: nothing was proven of one", err=True)
    raise typer.Exit(1 if not passed(measured) else NO_DEVICE if on_device and not device else 0)
