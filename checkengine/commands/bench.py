"""`checkengine bench`: what checkengine costs and what it catches, measured on this machine."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import typer

from checkengine.guards.errors import UserError

app = typer.Typer()

BENCHMARKS: dict[str, tuple[str, str]] = {
    "logits": ("logits", "logit_figures"),
    "recorder": ("recorder", "recorder_figures"),
    "tokens": ("tokens", "token_figures"),
    "guards": ("guards", "guard_figures"),
    "engine": ("engine", "engine_figures"),
    "replay": ("replay", "replay_figures"),
    "clean": ("clean", "clean_figures"),
}
"""Module in checkengine.benchmarks, and its function; the quick ones first."""
READ_DATA = ("tokens",)


@app.command()
def bench(
    name: str = typer.Argument("all", help=f"One of {', '.join(BENCHMARKS)}, all."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
    data: Path | None = typer.Option(None, "--data", help="Folder of public data; what is missing there is named."),
) -> None:
    """Measure what checkengine costs and what it catches. Exit 1 when a figure misses its target."""
    names = tuple(BENCHMARKS) if name == "all" else (name,)
    if name != "all" and name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}, all")
    from checkengine.figures import passed, print_report, report

    measured = report(f"bench {name}", [figure for each in names for figure in figures_of(each, data)])
    if as_json:
        typer.echo(json.dumps(measured))
    else:
        print_report(measured)
    raise typer.Exit(0 if passed(measured) else 1)


def figures_of(name: str, data: Path | None) -> list[dict[str, Any]]:
    module, function = BENCHMARKS[name]
    typer.echo(f"bench {name} …", err=True)
    measure = getattr(importlib.import_module(f"checkengine.benchmarks.{module}"), function)
    figures: list[dict[str, Any]] = measure(data) if name in READ_DATA else measure()
    return figures
