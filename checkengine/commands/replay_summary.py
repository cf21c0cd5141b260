"""The terminal summary of a replay."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from checkengine.guards.errors import one_line
from checkengine.replay.investigate import Investigation
from checkengine.replay.report.render import headline, strip

MARKS = {"equal": ("■", "green"), "other": ("■", "red"), "none": ("·", "dim")}
RESULTS = {True: "[green]nothing wrong[/]", False: "[red]found[/]", None: "[yellow]for information[/]"}


def print_summary(found: Investigation, report: Path | None = None, console: Console | None = None) -> None:
    console = console or Console()
    console.print(f"[bold]{shown(headline(found))}[/]")
    if found.forced:
        console.print(shown(found.forced.words()))
        console.print(Text.assemble(*(MARKS[cell["state"]] for cell in strip(found))))
    console.print(shown(fired(found)))
    for note in found.notes:
        console.print(shown(note))
    if found.verdict and found.verdict.tests:
        console.print(evidence(found))
    if report is not None:
        console.print(f"report: {shown(str(report))}")
    console.print(f"[dim]{found.seconds:.1f} s[/]")


def fired(found: Investigation) -> str:
    if found.finding is None:
        return "the bundle holds no finding"
    what = f"{found.finding.kind} on sequence {found.finding.sequence}"
    again = {True: "fires again", False: "does not fire again", None: "could not be judged"}[found.reproduced]
    twin = {True: "fires there too", False: "does not fire there"}.get(found.reference_fires or False)
    if found.reference is None or found.reference_fires is None:
        return f"{what} {again}"
    return f"{what} {again}; with the {found.reference.kernel} kernel it {twin}"


def evidence(found: Investigation) -> Table:
    table = Table("test", "result", "what it shows", box=None, pad_edge=False)
    for test in found.verdict.tests if found.verdict else ():
        table.add_row(test.name, RESULTS[test.passed], shown(test.detail))
    return table


def shown(text: str) -> str:
    """Names come from a bundle, which a stranger may have written: no markup, no control codes of a terminal."""
    return escape(one_line(text))
