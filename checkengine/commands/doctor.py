"""`checkengine doctor`: what is installed, what of it checkengine can hold on to, and whether a deployment works."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

app = typer.Typer(rich_markup_mode=None)


@app.command()
def doctor(
    config: Path | None = typer.Option(None, help="checkengine.toml. Default: the one in the current directory"),
    prometheus: str = typer.Option("", help="URL of a Prometheus that should scrape this deployment."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Say what the installed engines offer, what will be off in them, and whether spools, catalog, receivers and
    Prometheus of this deployment work. Exit 1 where something is off or does not."""
    from checkengine.config import load_settings
    from checkengine.deployment_checks import deployment_checks
    from checkengine.doctoring import diagnosis, lines

    found = diagnosis()
    checks = deployment_checks(load_settings(config), prometheus=prometheus)
    if as_json:
        typer.echo(json.dumps(found | {"deployment": [asdict(check) for check in checks]}))
    else:
        for line in lines(found):
            typer.echo(line)
        for check in checks:
            typer.echo(f"{'ok ' if check.ok else 'NOT'} {check.name}: {check.words}")
    well = found["vllm"]["off"] == [] and all(check.ok for check in checks)
    raise typer.Exit(0 if well else 1)
