"""`checkengine db`: the catalog's schema, its health, and what it forgets."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from checkengine.config import Settings
    from checkengine.replay.catalog import Catalog

app = typer.Typer(help="Upgrade, check and tidy the catalog.", no_args_is_help=True, rich_markup_mode=None)
CONFIG = typer.Option(None, help="checkengine.toml. Default: the one in the current directory")
URL = typer.Option(
    None, "--url", "--store", help="Of the catalog, or its file's path, in place of [catalog] url; also called --store."
)
AS_JSON = typer.Option(False, "--json", help="Print one JSON object.")


@app.command("upgrade")
def upgrade(config: Path | None = CONFIG, url: str | None = URL) -> None:
    """Bring the tables up to date. Processes do so themselves when they begin; this is for a moment of your own."""
    from checkengine.config import load_settings
    from checkengine.replay.catalog.health import newest_revision

    opened(url, load_settings(config)).close()
    typer.echo(f"the catalog is at revision {newest_revision()}")


@app.command("check")
def check(config: Path | None = CONFIG, url: str | None = URL, as_json: bool = AS_JSON) -> None:
    """Is the schema the newest, the file whole, every named bundle there? Exit 1: something is wrong; 2: no catalog."""
    from checkengine.config import load_settings
    from checkengine.replay.catalog.health import examine

    settings = load_settings(config)
    catalog = opened(url, settings, upgraded=False)
    health = examine(catalog, [settings.capture.directory])
    catalog.close()
    if as_json:
        told = {"revision": health.revision, "newest": health.newest, "rows": health.rows}
        typer.echo(json.dumps(told | {"problems": health.problems, "notes": health.notes}))
    else:
        for table, count in health.rows.items():
            typer.echo(f"{table:12} {count}")
        for line in (*health.notes, *health.problems):
            typer.echo(line)
        if not health.problems:
            typer.echo(f"the catalog is whole, at revision {health.revision}")
    raise typer.Exit(1 if health.problems else 0)


@app.command("vacuum")
def vacuum(config: Path | None = CONFIG, url: str | None = URL, as_json: bool = AS_JSON) -> None:
    """Delete what [catalog] keeps no longer, and give the room back. Held incidents and bundles stay."""
    from checkengine.config import load_settings
    from checkengine.replay.catalog.retention import Policy, expire, tidy

    settings = load_settings(config)
    opened(url, settings, upgraded=False).close()  # one that is not there is not made
    catalog = opened(url, settings)
    gone = expire(catalog, Policy.of(settings.catalog), time.time())
    tidy(catalog)
    catalog.close()
    if as_json:
        typer.echo(json.dumps({"deleted": gone}))
    else:
        deleted = ", ".join(f"{count} of {table}" for table, count in gone.items())
        typer.echo(f"deleted {deleted}" if deleted else "nothing is too old")


def opened(url: str | None, settings: Settings, *, upgraded: bool = True) -> Catalog:
    from checkengine.replay.catalog import Catalog
    from checkengine.replay.catalog.catalog import SETTING

    if url is None:
        return Catalog.open(settings.catalog.url, upgraded=upgraded, named=f"{SETTING}, or give --url")
    return Catalog.open(url, upgraded=upgraded, named="--url")
