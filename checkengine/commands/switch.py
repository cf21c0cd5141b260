"""`checkengine switch`: guards of running vLLM engines, off and on without a restart."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import typer

from checkengine.guards.errors import UserError

app = typer.Typer(rich_markup_mode=None)


@app.command()
def switch(
    name: str = typer.Argument(help="A guard (nonfinite, repetition…), or sidecar for all of checkengine."),
    to: str = typer.Argument(help="disable, enable, or rearm (which also lets go of the brake)."),
    config: Path | None = typer.Option(None, help="checkengine.toml. Default: the one in the current directory"),
) -> None:
    """Switch a guard, or all of checkengine, off or on in the vLLM engines whose spool is in the same folder."""
    from checkengine.config import load_settings
    from checkengine.engine_shim.vllm.switch_file import SIDECAR, Switch, SwitchFile
    from checkengine.guards.settings import GuardsSettings

    if to not in get_args(Switch):
        raise UserError(f"{to!r} is none of {', '.join(get_args(Switch))}")
    known = [*GuardsSettings.model_fields, SIDECAR]
    if name not in known:
        raise UserError(f"there is no guard {name!r}")
    file = SwitchFile(load_settings(config).spool.directory)
    file.put(name, to)  # type: ignore[arg-type]
    typer.echo(f"{name}: {to}, within a second, where an engine core reads {file.path}")
