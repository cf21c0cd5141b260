"""`checkengine replay --matrix`: the same bundle on several hosts, and what they make of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer

from checkengine.replay.matrix import Matrix, run_matrix


def matrix_of(bundle: Path, hosts: Sequence[str], template: str, as_json: bool) -> int:
    """Replay on every host and tell; returns the exit code."""
    from checkengine.replay.bundle.archive import export_bundle

    names = [name for host in hosts for name in ([host] if host.startswith("local:") else host.split(","))]
    with tempfile.TemporaryDirectory(prefix="checkengine-") as folder:
        file = export_bundle(bundle, Path(folder) / "bundle.checkengine", content=True)
        matrix = run_matrix(names, file.read_bytes(), template)
    if as_json:
        typer.echo(json.dumps(matrix.to_dict(), allow_nan=False, default=str))
    else:
        show(matrix)
    return matrix.exit_code


def show(matrix: Matrix) -> None:
    from rich.console import Console
    from rich.table import Table

    from checkengine.commands.replay_summary import shown

    console = Console()
    console.print(f"[bold]{matrix.kind}: {shown(matrix.sentence)}[/]")
    table = Table("host", "finding", "verdict", box=None, pad_edge=False)
    fires = {True: "fires again", False: "does not fire", None: "not known"}
    for result in matrix.results:
        verdict = f"{result.verdict['kind']}: {result.verdict['sentence']}" if result.judged else result.error
        table.add_row(shown(result.host), fires[(result.told or {}).get("reproduced")], shown(verdict or "not judged"))
    console.print(table)


def received(folder: Path) -> Path:
    """The bundle that comes in on standard input, unpacked into `folder`."""
    import sys

    from checkengine.replay.bundle.archive import import_bundle

    file = folder / "received.checkengine"
    file.touch(0o600)
    with file.open("wb") as sink:
        while piece := sys.stdin.buffer.read(1 << 20):
            sink.write(piece)
    return import_bundle(file, folder, "received")
