"""`checkengine doctor`: what is installed here, what of it checkengine can hold on to, and what will be off."""

from __future__ import annotations

import json

import typer

app = typer.Typer()


@app.command()
def doctor(as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> None:
    """Say what the installed engines offer, and what of checkengine will be off in them. Exit 1 where something is."""
    from checkengine.doctoring import diagnosis, lines

    found = diagnosis()
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for line in lines(found):
            typer.echo(line)
    raise typer.Exit(0 if found["vllm"]["off"] == [] else 1)

