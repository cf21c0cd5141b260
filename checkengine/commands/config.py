"""`checkengine config`: check a checkengine.toml, or print the settings that hold."""

from __future__ import annotations

from pathlib import Path

import typer

from checkengine.config import as_toml, load_settings

app = typer.Typer(help="Check a checkengine.toml.", no_args_is_help=True, rich_markup_mode=None)
FILE = typer.Argument(None, help="Default: $CHECKENGINE_CONFIG, else ./checkengine.toml")


@app.command("check")
def check(file: Path | None = FILE) -> None:
    """Exit 0 when file and environment can be used; else name line and key of every fault and exit 2."""
    load_settings(file)
    typer.echo("configuration is good")


@app.command("show")
def show(file: Path | None = FILE) -> None:
    """Print all settings as TOML, defaults included. Secrets are masked."""
    typer.echo(as_toml(load_settings(file)), nl=False)
