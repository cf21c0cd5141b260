"""`checkengine alerts`: Prometheus rules and Grafana dashboards for a deployment."""

from __future__ import annotations

from pathlib import Path

import typer

from checkengine.output_file import write_output

app = typer.Typer(help="Prometheus rules and Grafana dashboards.", no_args_is_help=True, rich_markup_mode=None)
DASHBOARD = typer.Option("", "--dashboard", help="URL of checkengine's dashboard, for the links in alerts.")
RUNBOOKS = typer.Option("", "--runbooks", help="URL under which the runbooks of docs/runbooks are published.")


@app.command("rules")
def rules(
    dashboard: str = DASHBOARD,
    runbooks: str = RUNBOOKS,
    output: Path | None = typer.Option(None, "--output", help="File to write. Default: standard output."),
) -> None:
    """Print the rule file for Prometheus (2.42 or newer)."""
    from checkengine.dashboards.rules.groups import rules_yaml
    from checkengine.dashboards.rules.rule import Links

    usual = Links()
    text = rules_yaml(Links(dashboard.rstrip("/") or usual.dashboard, runbooks.rstrip("/") or usual.runbooks))
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_output(output, text, "the rule file")


@app.command("grafana")
def grafana(output: Path = typer.Option(..., "--output", help="Folder to write the dashboards into.")) -> None:
    """Write the Grafana dashboards, one JSON file each."""
    from checkengine.dashboards.grafana.boards import files

    output.mkdir(parents=True, exist_ok=True)
    for path, text in files().items():
        write_output(output / path.name, text, "a dashboard")
        typer.echo(output / path.name)
