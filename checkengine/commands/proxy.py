"""`checkengine proxy`: guards in front of any OpenAI-compatible server."""

from __future__ import annotations

from pathlib import Path

import typer

from checkengine.guards.errors import UserError

app = typer.Typer(rich_markup_mode=None)


@app.command()
def proxy(
    upstream: list[str] = typer.Option(
        [], metavar="URL", help="Address of an OpenAI-compatible server; may be given more than once."
    ),
    host: str | None = typer.Option(None, help="Address to listen on. Default: 127.0.0.1"),
    port: int | None = typer.Option(None, help="Port to listen on; 0 takes a free one. Default: 8100"),
    config: Path | None = typer.Option(None, help="checkengine.toml. Default: the one in the current directory"),
) -> None:
    """Put guards in front of any OpenAI-compatible server. Bodies and streams pass unchanged unless a guard acts."""
    try:
        from checkengine.engine_shim.proxy.admin import AdminThread
        from checkengine.engine_shim.proxy.server import serve_until_signal
    except ImportError as error:
        raise UserError(f"the proxy needs {error.name}: pip install 'checkengine[proxy]'") from None
    from checkengine.proxying import assemble_proxy, proxy_settings

    made = assemble_proxy(proxy_settings(config, upstream, host, port))
    typer.echo("loading the guards (some seconds)", err=True)
    made.warm_up()
    settings = made.settings.proxy
    try:
        if settings.admin_port is not None:
            made.closers.append(AdminThread(made.controls, settings, _announce_admin).close)
        serve_until_signal(made.app, _announce)
    finally:
        made.close()


def _announce(address: str) -> None:
    typer.echo(f"proxy on {address}/v1 (health: {address}/checkengine/healthz)", err=True)


def _announce_admin(address: str) -> None:
    typer.echo(f"metrics and switches on {address} (/metrics, /checkengine/guards)", err=True)
