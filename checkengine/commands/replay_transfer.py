"""`checkengine replay FILE.transfer`: which side of a KV transfer broke the block, from both sides' records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from checkengine.commands.replay_summary import shown
from checkengine.replay.investigate import CANNOT_JUDGE, NOT_REPRODUCED, REPRODUCED
from checkengine.replay.transfer import Side, Transfer, TransferVerdict, broken_values, judge_transfer
from checkengine.replay.transfer_file import read_transfer


def examine_transfer(path: Path, as_json: bool) -> int:
    """Judge and tell; exit code 1: a side broke it, 125: a record is missing, 0: nothing differs."""
    transfer = read_transfer(path)
    verdict = judge_transfer(transfer)
    if as_json:
        typer.echo(json.dumps(as_values(path, transfer, verdict)))
    else:
        print_verdict(transfer, verdict, Console())
    return {Side.UNTOLD: CANNOT_JUDGE, Side.NONE: NOT_REPRODUCED}.get(verdict.side, REPRODUCED)


def as_values(path: Path, transfer: Transfer, verdict: TransferVerdict) -> dict[str, Any]:
    sent, came = transfer.prefill, transfer.decode
    return {
        "transfer": str(path),
        "block": transfer.block,
        "broken": broken_values(transfer.broken),
        "writer": came.writer if sent is None else sent.writer,
        "reader": came.reader,
        "side": str(verdict.side),
        "words": verdict.words,
        "tests": [{"name": test.name, "side": str(test.side), "equal": test.equal} for test in verdict.tests],
    }


def print_verdict(transfer: Transfer, verdict: TransferVerdict, console: Console) -> None:
    console.print(f"[bold]{shown(verdict.words)}[/]")
    console.print(shown(place_of(transfer)))
    table = Table("records compared", "result", "where they differ it was", box=None, pad_edge=False)
    words = {True: "[green]equal[/]", False: "[red]differ[/]", None: "[yellow]one is missing[/]"}
    for test in verdict.tests:
        table.add_row(test.name, words[test.equal], str(test.side))
    console.print(table)


def place_of(transfer: Transfer) -> str:
    broken, sent, came = transfer.broken, transfer.prefill, transfer.decode
    told = f"{broken.kind}, from {came.writer if sent is None else sent.writer} to {came.reader}"
    if broken.cells:
        told += f": {broken.cells} cells, the first in layer {broken.layer}, token {broken.token}, head {broken.head}"
    if broken.flip is not None:
        told += f", byte {broken.flip.byte}, bit {broken.flip.bit}"
    return told
