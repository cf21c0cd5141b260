"""`checkengine probe`: what a machine can do for a model, measured before one is served."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from checkengine.guards.errors import UserError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _probe() -> None:
    """Probe this machine."""


@app.command()
def residency(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of tables."),
    device: str = typer.Option("cpu", "--device", help="torch's name of the device: cpu, cuda, cuda:1."),
    dtype: str = typer.Option("float32", "--dtype", help="float32, bfloat16 or float16."),
    seconds: float = typer.Option(60.0, "--seconds", min=1, max=3600, help="About how long to measure."),
    memory: str = typer.Option("4G", "--memory", help="What eight copies of the largest weight may take."),
    cache: str = typer.Option("", "--cache", help="The last cache level's size, where the device does not tell it."),
    on_chip: str = typer.Option("238.4M", "--on-chip", help="An on-chip memory that a loop block should fit."),
    eager: bool = typer.Option(False, "--eager", help="Leave out what must be compiled first."),
    plot: Path | None = typer.Option(None, "--plot", help="Write the curve to this SVG file."),
) -> None:
    """Does sharing weights among loops save memory traffic here, and up to which size?"""
    from checkengine.probing.caches import bytes_of
    from checkengine.probing.residency import DTYPES, ProbeOptions, probe

    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype!r} is none of {', '.join(DTYPES)}")
    options = ProbeOptions(
        device, dtype, seconds, bytes_of(memory), bytes_of(cache) if cache else None, bytes_of(on_chip), eager
    )
    found = probe(options, lambda line: typer.echo(line, err=True))
    if plot is not None:
        from checkengine.probing.plot import as_svg

        plot.write_text(as_svg(found))
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        from rich.console import Console

        from checkengine.probing.words import print_residency

        print_residency(found, Console())
