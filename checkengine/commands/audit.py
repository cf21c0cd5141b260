"""`checkengine audit`: what share of the traffic was audited, what follows, and what was convicted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from checkengine.audits import AuditReport

app = typer.Typer(rich_markup_mode=None)


@app.command()
def audit(
    url: str | None = typer.Option(None, help="A running server, for example http://127.0.0.1:8000. Default: catalog."),
    config: Path | None = typer.Option(None, help="A checkengine.toml that names the catalog of all replicas."),
    token: str | None = typer.Option(None, envvar="CHECKENGINE_CONTROL_TOKEN", help="The server's control token."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
) -> None:
    """Show, per stratum, rows seen and audited, and the bound on the rate of silent faults that follows (95 %).

    Exit code 0: no conviction; 1: an audit has convicted; 2: wrong usage, or nothing to read from.
    """
    from checkengine.audits import audits_in_catalog, audits_of_server

    report = audits_of_server(url, token) if url is not None else audits_in_catalog(config)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), allow_nan=False))
    else:
        print_table(report)
    raise typer.Exit(1 if report.convictions else 0)


def print_table(report: AuditReport) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("stratum", title="audited rows of steps")
    for heading in ("seen", "audited", "share", "fault rate ≤ (95 %)", "convicted"):
        table.add_column(heading, justify="right")
    for each in report.strata:
        share, bound = f"{100 * each.share:.3g} %", f"{each.bound:.2g}" if each.audited else "unknown"
        table.add_row(each.name, f"{each.seen:,}", f"{each.audited:,}", share, bound, str(each.convicted))
    console = Console(width=None if os.isatty(1) else 120)
    console.print(table)
    console.print(summary(report), highlight=False)
    for conviction in report.convictions:
        console.print(line_of(conviction), highlight=False, markup=False)


def summary(report: AuditReport) -> str:
    found = ", ".join(f"{count} {verdict}" for verdict, count in sorted(report.verdicts.items())) or "none"
    return (
        f"{report.judged:,} steps audited in {report.cpu_seconds:,.1f} CPU seconds by {report.replicas} process(es): "
        f"{found}; {report.skipped:,} left out for the budget, {report.dropped:,} dropped"
    )


def line_of(conviction: dict[str, Any]) -> str:
    return (
        f"convicted: {conviction['verdict']}, step {conviction['step']}, sequence {conviction['sequence']}, "
        f"incident {conviction['incident']}, replica {conviction['replica'] or 'this server'}"
    )
