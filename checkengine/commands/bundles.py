"""`checkengine bundles`: list, show, export, import, hold, erase and remove captured bundles."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

DIRECTORY = typer.Option(None, "--directory", "-d", help="Default: [capture] directory of the configuration.")
CONFIG = typer.Option(None, "--config", help="A checkengine.toml.")
AS_JSON = typer.Option(False, "--json", help="Print JSON instead of text.")
BUNDLE = typer.Argument(help="A bundle's folder.")


@app.callback()
def _bundles() -> None:
    """Captured bundles on this machine: what there is, who may read it, how long it stays."""


@app.command("ls")
def list_bundles(directory: Path | None = DIRECTORY, config: Path | None = CONFIG, as_json: bool = AS_JSON) -> None:
    """List bundles, oldest first: name, how much memory (L0 to L3), content, size, until when."""
    from checkengine.guards.errors import one_line
    from checkengine.replay.bundle import bundles_in

    rows = [row_of(path) for path in bundles_in(there(directory, config))]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        size = f"{row['bytes'] / 1e6:8.1f} MB"
        typer.echo(
            one_line(f"{row['bundle']}  {row['captured']:<2}  {row['level']:<10} {size}  {row['note']}").rstrip()
        )
    typer.echo(f"{len(rows)} bundle{'' if len(rows) == 1 else 's'}", err=True)


@app.command()
def show(bundle: Path = BUNDLE, as_json: bool = AS_JSON) -> None:
    """What a bundle is, without opening its content; --json tells all of it."""
    from checkengine.commands.bundle_summary import summary_of
    from checkengine.replay.bundle import BundleReader, results_of

    reader = BundleReader(bundle, "show")
    if not as_json:
        typer.echo("\n".join(summary_of(bundle, row_of(bundle))))
        return
    told = row_of(bundle) | {
        "incident": reader.manifest.get("incident"),
        "findings": reader.manifest.get("findings"),
        "step": reader.json("step.json"),
        "environment": reader.json("env.json"),
        "results": len(results_of(bundle)),
    }
    typer.echo(json.dumps(told))


@app.command("export")
def export_one(
    bundle: Path = BUNDLE,
    out: Path = typer.Option(..., "--out", "-o", help="The file to write."),
    content: bool = typer.Option(False, "--content", help="With the encrypted content and the wrapped keys."),
) -> None:
    """Write a bundle as one file. Without --content it holds no token, no text and no KV byte."""
    from checkengine.replay.bundle import AccessLog, export_bundle

    if content:
        AccessLog.of_this_deployment().add("export", bundle.name, str(out.name))
    typer.echo(str(export_bundle(bundle, out, content=content)))


@app.command("import")
def import_one(
    file: Path = typer.Argument(help="A file that `bundles export` wrote."),
    directory: Path | None = DIRECTORY,
    config: Path | None = CONFIG,
    name: str | None = typer.Option(None, help="Name of the bundle's folder; default: the file's name."),
) -> None:
    """Unpack an exported bundle; nothing is written unless it verifies."""
    from checkengine.replay.bundle import import_bundle

    typer.echo(str(import_bundle(file, chosen(directory, config), name)))


@app.command()
def push(
    bundle: Path = BUNDLE,
    url: str = typer.Argument(help="An fsspec URL: s3://bucket/folder, gs://…, file:///…"),
    content: bool = typer.Option(True, "--content/--no-content", help="With the encrypted content."),
) -> None:
    """Copy a bundle to an object store; the marker goes last."""
    from checkengine.replay.bundle import AccessLog, BundleStore

    if content:
        AccessLog.of_this_deployment().add("export", bundle.name, url)
    typer.echo(BundleStore(url).push(bundle, content=content))


@app.command()
def pull(
    url: str = typer.Argument(help="The bundle's URL."),
    directory: Path | None = DIRECTORY,
    config: Path | None = CONFIG,
) -> None:
    """Fetch a bundle from an object store; it gets its name once it verifies."""
    from checkengine.replay.bundle import fetch

    typer.echo(str(fetch(url, chosen(directory, config))))


@app.command("rm")
def remove_one(
    bundle: Path = BUNDLE, force: bool = typer.Option(False, "--force", help="Even if the bundle is held.")
) -> None:
    """Remove a bundle."""
    from checkengine.replay.bundle import AccessLog, BundleReader, remove

    BundleReader(bundle)
    refuse_held(bundle, force)
    AccessLog.of_this_deployment().add("remove", bundle.name)
    remove(bundle)
    typer.echo(f"removed {bundle.name}")


@app.command()
def gc(
    directory: Path | None = DIRECTORY,
    config: Path | None = CONFIG,
    keep: int | None = typer.Option(None, min=0, help="Default: [capture] maximum_bundles."),
    as_json: bool = AS_JSON,
) -> None:
    """Erase content whose time is over, and remove the oldest bundles beyond the number to keep."""
    from checkengine.replay.bundle import collect

    settings = capture_settings(config)
    done = collect(there(directory, config), settings.maximum_bundles if keep is None else keep)
    told = {"erased": done.erased, "removed": done.removed, "held": done.held, "unreadable": done.unreadable}
    lines = [f"{name} {what}" for what in told for name in told[what]]
    typer.echo(json.dumps(told) if as_json else "\n".join(lines) or "nothing to erase or to remove")


@app.command()
def erase(
    bundle: Path | None = typer.Argument(None, help="A bundle's folder."),
    subject: str | None = typer.Option(None, help="Every bundle in which a sequence has this request id."),
    directory: Path | None = DIRECTORY,
    config: Path | None = CONFIG,
    force: bool = typer.Option(False, "--force", help="Even if the bundle is held."),
) -> None:
    """Destroy the key and the content of a bundle, or of all that hold one request's tokens. What is left verifies.

    A held bundle is refused without --force; --subject is a person's right, and takes held ones too.
    """
    from checkengine.replay.bundle import BundleReader, erase_logged, erase_subject

    if (bundle is None) == (subject is None):
        raise typer.BadParameter("give either a bundle or --subject")
    if subject is not None:
        home = there(directory, config)
        names = [told_of(home / name) for name in erase_subject(home, subject)]
    else:
        assert bundle is not None
        BundleReader(bundle)
        refuse_held(bundle, force)
        names = [told_of(bundle)] if erase_logged(bundle, "asked for") else []
    typer.echo("\n".join([*names, f"content of {len(names)} bundles erased"]))


def refuse_held(bundle: Path, force: bool) -> None:
    from checkengine.replay.bundle import BundleError, held, hold_reason

    if held(bundle) and not force:
        raise BundleError(f"{bundle} is held ({hold_reason(bundle) or 'no reason given'}): release it, or give --force")


def told_of(bundle: Path) -> str:
    """Its name, and that it was held."""
    from checkengine.replay.bundle import held, hold_reason

    return f"{bundle.name} (was held: {hold_reason(bundle) or 'no reason given'})" if held(bundle) else bundle.name


@app.command("hold")
def hold_one(bundle: Path = BUNDLE, reason: str = typer.Option("", help="Stands in the access log.")) -> None:
    """Keep a bundle and its content beyond their time."""
    from checkengine.replay.bundle import BundleReader, hold

    BundleReader(bundle)
    hold(bundle, reason)
    typer.echo(f"held {bundle.name}: it stays until `checkengine bundles release {bundle}`")


@app.command("release")
def release_one(bundle: Path = BUNDLE) -> None:
    """End a hold."""
    from checkengine.replay.bundle import BundleReader, release

    BundleReader(bundle)
    typer.echo("released" if release(bundle) else "was not held")


@app.command()
def share(
    bundle: Path = BUNDLE, public_key: str = typer.Argument(help="The line of their `bundles identity`.")
) -> None:
    """Let one more identity read the content of a bundle that can be read here."""
    from checkengine.replay.bundle import BundleReader, PublicKey

    key = PublicKey.parse(public_key)
    BundleReader(bundle, "share").share(key)
    typer.echo(f"{key.id} may read {bundle.name} too")


@app.command()
def access(as_json: bool = AS_JSON) -> None:
    """Who opened, exported, held or erased content; fails where the chain of the log is broken."""
    from checkengine.replay.bundle import AccessLog

    rows = AccessLog.of_this_deployment().read()
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row["time"]))
        text = f"{when}  {row['action']:<8} {row['bundle']}  by {row['by']}  {row['purpose']}"
        typer.echo(json.dumps(row) if as_json else text)
    typer.echo(f"{len(rows)} rows; the chain is whole and ends with {rows[-1]['digest'] if rows else '-'}", err=True)


@app.command()
def identity() -> None:
    """Print this user's public key: what [capture] recipients of another machine names."""
    from checkengine.replay.bundle import own_identity

    typer.echo(str(own_identity().public))


def chosen(directory: Path | None, config: Path | None) -> Path:
    return directory or Path(capture_settings(config).directory)


def there(directory: Path | None, config: Path | None) -> Path:
    """A folder that was named and is none is a slip; the configuration's is made by the first capture."""
    from checkengine.replay.bundle import BundleError

    if directory is not None and not directory.is_dir():
        raise BundleError(f"there is no folder {directory}: give --directory of a folder of bundles")
    return chosen(directory, config)


def capture_settings(config: Path | None) -> Any:
    from checkengine.config import load_settings

    return load_settings(config).capture


def level_name(manifest: dict[str, Any]) -> str:
    """L0 to L3; "-" for a single call."""
    from checkengine.replay.levels import LEVELS

    level = manifest.get("capture_level", "L3" if "ring.safetensors" in manifest["files"] else "-")
    return level if level in (*LEVELS, "-") else "?"


def row_of(path: Path) -> dict[str, Any]:
    from checkengine.replay.bundle import BundleError, BundleReader, expires, held

    size = sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
    try:
        reader = BundleReader(path)
    except BundleError as error:
        return {"bundle": path.name, "captured": "?", "level": "unreadable", "bytes": size, "note": str(error)}
    when, kept = expires(reader.manifest), held(path)
    until = "" if when is None or reader.level != "full" else time.strftime("until %F %R UTC", time.gmtime(when))
    return {
        "bundle": path.resolve().name,
        "captured": level_name(reader.manifest),
        "level": reader.level,
        "bytes": size,
        "encrypted": reader.level == "full" and reader.encrypted,
        "expires": when,
        "held": kept,
        "note": "held" if kept else until,
    }
