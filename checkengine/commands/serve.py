"""`checkengine serve`: a model with guards over an OpenAI-compatible API."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(rich_markup_mode=None)


@app.command()
def serve(
    model: str = typer.Argument(help="A name from `checkengine models list`, or a directory with a config.json."),
    host: str | None = typer.Option(None, help="Address to listen on. Default: 127.0.0.1"),
    port: int | None = typer.Option(None, help="Port to listen on; 0 takes a free one. Default: 8000"),
    config: Path | None = typer.Option(None, help="checkengine.toml. Default: the one in the current directory"),
) -> None:
    """Serve a model with guards over an OpenAI-compatible API."""
    from checkengine.engine_shim.models import model_directory

    model_directory(model)  # says what is missing before seconds of imports
    from checkengine.engine_shim.engine.server_process import serve_until_signal
    from checkengine.serving import assemble_server

    typer.echo(f"loading {model}", err=True)
    served = assemble_server(model, config=config, host=host, port=port)
    try:
        serve_until_signal(served.app, served.runtime, served.settings, announce=_announce)
    finally:
        served.close()


def _announce(address: str) -> None:
    typer.echo(f"serving on {address}/v1 (metrics: {address}/metrics, health: {address}/healthz)", err=True)
