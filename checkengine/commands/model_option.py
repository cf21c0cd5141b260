"""`--model DIR`: where the model of a record lies on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from checkengine.engine_shim.models import MODEL_VARIABLE


def given(context: typer.Context, directory: Path | None) -> Path | None:
    """Sets the variable for as long as the command runs: processes that it starts look there too."""
    if directory is None:
        return None
    if not (directory / "config.json").is_file():
        raise typer.BadParameter(f"there is no model in {directory.absolute()}: it holds no config.json")
    before = os.environ.get(MODEL_VARIABLE)
    os.environ[MODEL_VARIABLE] = str(directory.absolute())

    def restore() -> None:
        if before is None:
            os.environ.pop(MODEL_VARIABLE, None)
        else:
            os.environ[MODEL_VARIABLE] = before

    context.call_on_close(restore)
    return directory


MODEL: Any = typer.Option(
    None,
    "--model",
    metavar="DIR",
    envvar=MODEL_VARIABLE,
    callback=given,
    help="Where the recorded model lies here; default: under its name in this folder or among the fetched ones.",
)
