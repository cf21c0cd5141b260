"""`checkengine selftest`: check this installation on this machine."""

from __future__ import annotations

import json

import typer

app = typer.Typer()


@app.command()
def selftest(as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table.")) -> None:
    """Check this installation on this machine. Exit 1 when a figure misses its target."""
    from checkengine.figures import passed, print_report, report
    from checkengine.selftest import selftest_figures
    from checkengine.selftest_faults import fault_figures

    measured = report("selftest", [*selftest_figures(), *fault_figures()])
    if as_json:
        typer.echo(json.dumps(measured))
    else:
        print_report(measured)
    raise typer.Exit(0 if passed(measured) else 1)
