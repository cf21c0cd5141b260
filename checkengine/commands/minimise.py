"""`checkengine minimise BUNDLE`: the least that still shows the fault, without anybody's content where that can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from checkengine.commands.model_option import MODEL

if TYPE_CHECKING:
    from checkengine.replay.minimise.minimise import Minimised

app = typer.Typer(rich_markup_mode=None)


@app.command()
def minimise(
    bundle: Path = typer.Argument(help="A bundle's folder, with content."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder to write into; default: beside the bundle."),
    content_free: bool = typer.Option(
        False, "--content-free", help="Write only where no token, no text and no KV byte is left in it."
    ),
    budget: int = typer.Option(200, min=1, help="Replays at most: runs of one step or one call."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a summary."),
    model: Path | None = MODEL,
) -> None:
    """Shrink a convicted capture to the smallest bundle that shows the same fault.

    Exit code 0: written; 125: no kernel is convicted, or --content-free and the fault needs the recorded content; 129:
    damaged bundle.
    """
    from checkengine.replay.bundle import BundleReader
    from checkengine.replay.executor import CannotReplayError
    from checkengine.replay.find_executor import find_executor
    from checkengine.replay.minimise.convict import CONVICTIONS, convict
    from checkengine.replay.minimise.minimise import minimise as shrink
    from checkengine.replay.minimise.reproducer import write_reproducer

    reader = BundleReader(bundle, "minimise")
    capture = reader.capture()
    executor = find_executor(capture.environment)
    verdict = convict(capture, executor)
    if verdict.kind not in CONVICTIONS:
        raise CannotReplayError(f"nothing to shrink: {verdict.kind}: {verdict.sentence}")
    found = shrink(capture, executor, verdict, budget=budget)
    path = write_reproducer(
        found, capture, executor, out or bundle.resolve().parent, content_free=content_free, parent=bundle
    )
    told = {"bundle": str(path), "judge_replays": verdict.replays_used, "bytes": size_of(path), **found.to_dict()}
    if as_json:
        typer.echo(json.dumps(told))
    else:
        print_passes(found, path)


def print_passes(found: Minimised, path: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table("pass", "left", "replays so far", box=None, pad_edge=False)
    for taken in found.taken:
        table.add_row(taken.name, taken.left, str(taken.replays))
    console.print(f"[bold]{escape(found.symptom.words)}[/]")
    console.print(table)
    console.print("one by one, nothing more can go" if found.minimal else "not proven to be the least")
    if found.stopped:
        console.print(escape(found.stopped))
    what = f"values: {found.values}, nobody's content" if found.content_free else "it holds recorded content"
    console.print(f"{escape(str(path))} ({size_of(path) / 1024:.1f} KiB; {what})", soft_wrap=True)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
