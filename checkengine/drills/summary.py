"""The demo's result on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from checkengine.drills.outcome import Clean, DemoResult, Outcome
from checkengine.drills.words import caught, clean_sentence, neighbours, reproduced, unguarded


def print_summary(result: DemoResult, report: Path) -> None:
    console = Console()
    print_clean(console, result.clean)
    for outcome in result.drills:
        print_outcome(console, outcome)
    passed = sum(outcome.passed for outcome in result.drills)
    console.print(
        f"\n[bold]{passed} of {len(result.drills)} drills[/bold] caught, judged and reproduced, "
        f"in {result.seconds:.0f} s. Report: {escape(str(report))}"
    )


def print_clean(console: Console, clean: Clean) -> None:
    console.print("\n[bold]Clean run[/bold]")
    console.print(f"  {clean_sentence(clean)}")


def print_outcome(console: Console, outcome: Outcome) -> None:
    mark = "[green]✓[/green]" if outcome.passed else "[red]✗[/red]"
    console.print(f"\n{mark} [bold]{escape(outcome.title)}[/bold]: {escape(outcome.story)}")
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    rows = (
        ("unguarded", escape(unguarded(outcome))),
        ("caught", caught(outcome)),
        ("neighbours", neighbours(outcome)),
        ("replay", reproduced(outcome)),
        ("verdict", escape(outcome.verdict or "none: nothing was captured")),
        ("bundle", escape(outcome.bundle or "none")),
    )
    for name, words in rows:
        table.add_row(f"  {name}", words)
    console.print(table)
