"""`checkengine dashboard`: incidents, replicas and bundles in a browser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from checkengine.config import Settings
    from checkengine.dashboards.web.settings import DashboardSettings
    from checkengine.replay.report.tokens import Pieces

app = typer.Typer(rich_markup_mode=None)


@app.command()
def dashboard(
    store: str | None = typer.Option(None, help="Path or URL of the catalog. Default: [catalog] url"),
    bundles: list[Path] = typer.Option([], help="Folder of bundles; may be given again. Default: [capture] directory"),
    host: str | None = typer.Option(None, help="Address to listen on. Default: 127.0.0.1"),
    port: int | None = typer.Option(None, help="Port to listen on; 0 takes a free one. Default: 8080"),
    config: Path | None = typer.Option(None, help="checkengine.toml. Default: the one in the current directory"),
    replay: bool = typer.Option(
        True, "--replay/--no-replay", help="Run replays that are asked for here, one at a time."
    ),
    new_token: tuple[str, str] | None = typer.Option(
        None, metavar="NAME ROLE", help="Print a token, and its line for [dashboard] token_file; ROLE as in the docs."
    ),
) -> None:
    """Show incidents, replicas and bundles of a catalog, and replay bundles, in a browser.

    On a loopback address nobody is asked who they are; elsewhere it needs [dashboard] token_file or oidc_issuer.
    """
    if new_token is not None:
        print_token(*new_token)
        return
    from checkengine.config import load_settings
    from checkengine.dashboards.web.app import Given, build_app
    from checkengine.dashboards.web.auth import needs_sign_in
    from checkengine.guards.errors import UserError
    from checkengine.replay.catalog import Catalog
    from checkengine.replay.catalog.catalog import SETTING, is_absent, location_of
    from checkengine.web_process import serve

    settings = load_settings(config)
    chosen = chosen_settings(settings, host, port)
    needs_sign_in(chosen)
    url, named = (settings.catalog.url, SETTING) if store is None else (store, "--store")
    is_new = is_absent(location_of(url, named))
    catalog = Catalog.open(url, named=named)
    if is_new:
        typer.echo(f"there was no catalog at {url} ({named}): a new, empty one was made", err=True)
    for folder in bundles:
        if not folder.is_dir():
            raise UserError(f"--bundles {folder}: there is no such folder")
    roots = tuple(bundles) or (settings.capture.directory,)
    app = build_app(chosen, Given(catalog, roots, pieces_of))
    serve(app, chosen, catalog, roots if replay else (), announce)


def chosen_settings(settings: Settings, host: str | None, port: int | None) -> DashboardSettings:
    from pydantic import ValidationError

    from checkengine.dashboards.web.settings import DashboardSettings
    from checkengine.guards.errors import UserError

    given = {key: value for key, value in {"host": host, "port": port}.items() if value is not None}
    try:
        return DashboardSettings.model_validate(settings.dashboard.model_dump() | given)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UserError(f"--{fault['loc'][0]} {fault['input']!r}: {fault['msg']}") from error


def pieces_of(environment: Mapping[str, Any]) -> Pieces | None:
    from checkengine.commands.report import pieces_of as of_report

    return of_report(environment)


def print_token(name: str, role: str) -> None:
    from checkengine.dashboards.web.tokens import new_token
    from checkengine.guards.errors import UserError

    try:
        token, line = new_token(name, role)
    except ValueError as error:
        raise UserError(f"--new-token {name} {role}: {error}") from error
    typer.echo(f"token, for {name} alone: {token}", err=True)
    typer.echo(line)


def announce(address: str) -> None:
    typer.echo(f"dashboard on {address}", err=True)
