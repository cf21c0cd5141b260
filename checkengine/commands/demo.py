"""`checkengine demo`: serve a real model, plant faults, catch, capture, replay and judge them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from checkengine.drills.outcome import DemoResult

app = typer.Typer(rich_markup_mode=None)

MODEL = "smollm2-135m"
LEAST_BYTES = 64 << 20
"""What a demo writes, at least; better known now than after minutes."""


@app.command()
def demo(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a summary."),
    out: Path = typer.Option(Path("checkengine-out"), "--out", help="Directory for bundles, catalog and report."),
    threads: int | None = typer.Option(None, help="Threads of the engine. Default: the cores, at most 2."),
) -> None:
    """Serve 16 chat requests on a real model: first clean, then with one planted fault at a time.

    Bundles in the output directory hold token ids and KV bytes of the demo's own requests.
    Exit code 0: everything was caught, judged and reproduced; 1: something was not.
    """
    from checkengine.engine_shim.models import model_directory

    directory = model_directory(MODEL)
    prepare(out)
    result = run(directory, out, threads, quiet=as_json)
    report = write_report(result, out)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), allow_nan=False))
    else:
        from checkengine.drills.summary import print_summary

        print_summary(result, report)
    raise typer.Exit(0 if result.passed else 1)


def prepare(out: Path) -> None:
    from checkengine.guards.errors import UserError

    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(bytes(LEAST_BYTES))
            probe.flush()
    except OSError as error:
        problem = f"the output directory {out} cannot be made and written to: {error.strerror}"
        raise UserError(f"{problem}; choose another --out") from error


def run(directory: Path, out: Path, threads: int | None, *, quiet: bool) -> DemoResult:
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    with console.status("loading the model") as status:

        def say(line: str) -> None:
            if not console.is_terminal:
                console.print(line)
            status.update(line)

        from checkengine.drills.catalogued import collect_into_catalog
        from checkengine.drills.run import Demo, drill_settings
        from checkengine.engine_shim.engine.load import load_model

        settings = drill_settings(out, threads)
        model, tokenizer = load_model(directory)
        demo = Demo(model, tokenizer, settings, say)
        result = demo.run()
        say("collecting the spool into the catalog")
        collect_into_catalog(settings, demo.judged)
    return result


def write_report(result: DemoResult, out: Path) -> Path:
    from checkengine.drills.report import render
    from checkengine.output_file import write_output

    path = out / "report.html"
    write_output(path, render(result), "the report")
    return path
