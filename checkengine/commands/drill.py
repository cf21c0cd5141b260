"""`checkengine drill NAME`: plant the faults of moving KV, failing machines and looped models, and see them caught."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import typer

from checkengine.guards.errors import UserError

app = typer.Typer(rich_markup_mode=None)

DRILLS: dict[str, str] = {
    "tiers": "checkengine.motion.tiers",
    "loop": "checkengine.motion.loop",
    "expert-loss": "checkengine.motion.expert_loss",
    "kv-transfer": "checkengine.motion.kv_transfer",
}
"""Each module has `figures(*, quick) -> list of figures` and takes three minutes at most."""


@app.command()
def drill(
    name: str = typer.Argument(..., help=f"One of {', '.join(DRILLS)}."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
    quick: bool = typer.Option(False, "--quick", help="A slice of the drill, in half a minute."),
    data: Path | None = typer.Option(None, "--data", help="tiers: folder of public data, for the Mooncake trace."),
) -> None:
    """Plant the faults, see them caught, and print each figure with its target. Exit 1 when one misses it."""
    if name not in DRILLS:
        raise UserError(f"there is no drill {name!r}; there are {', '.join(DRILLS)}")
    from checkengine.figures import passed, print_report, report

    if data is not None and name != "tiers":
        raise UserError("--data belongs to `drill tiers`")
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data} is no folder")
    options: dict[str, Any] = {"quick": quick} | ({"data": data} if data is not None else {})
    figures: list[dict[str, Any]] = importlib.import_module(DRILLS[name]).figures(**options)
    measured = report(f"drill {name}", figures)
    if as_json:
        typer.echo(json.dumps(measured))
    else:
        print_report(measured)
    raise typer.Exit(0 if passed(measured) else 1)
