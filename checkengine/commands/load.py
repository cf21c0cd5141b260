"""`checkengine load`: what a server can take, under a workload with known lengths, prefixes and arrivals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import typer

from checkengine.guards.errors import UserError

app = typer.Typer(rich_markup_mode=None)

PROFILE = "lecture, azure, mooncake, or a trace: .jsonl as Mooncake's, .csv as Azure's, gzipped or not."


@app.command()
def load(
    profile: str = typer.Option(..., help=PROFILE),
    url: str = typer.Option(..., help="Address of an OpenAI-compatible server."),
    model: str | None = typer.Option(None, help="Default: the first that the server lists."),
    token: str | None = typer.Option(None, envvar="CHECKENGINE_API_KEY", help="Bearer token."),
    data: Path | None = typer.Option(None, "--data", help="Folder of public traces, for azure and mooncake."),
    rate: float | None = typer.Option(
        None, min=1e-6, help="Requests a second. Default: 1 for lecture, a trace's own. With --search: the first tried."
    ),
    duration: float = typer.Option(60.0, min=0.1, help="Seconds that are measured."),
    warm_up: float = typer.Option(0.0, min=0, help="Seconds before, sent and not measured."),
    seed: int = typer.Option(0, help="Of words and arrivals. A server that saw the same seed has its prompts cached."),
    max_concurrency: int = typer.Option(1024, min=1, help="Requests at a time; a wait for a place is the server's."),
    endpoint: str = typer.Option("chat", help="chat or completions."),
    scale: float = typer.Option(1.0, min=1e-4, help="Of all lengths, for small servers."),
    max_input: int | None = typer.Option(None, min=1, help="Tokens at which prompts are cut."),
    max_output: int | None = typer.Option(None, min=1, help="Tokens at which outputs are cut."),
    ttft_ms: float = typer.Option(500.0, min=0.001, help="Limit of the time to the first token."),
    tbt_ms: float = typer.Option(30.0, min=0.001, help="Limit of a request's mean time between tokens."),
    share: float = typer.Option(0.99, min=0, max=1, help="Of the requests that must be within both limits."),
    search: bool = typer.Option(False, help="Find the highest rate that is within the limits."),
    units: float = typer.Option(1.0, min=0.001, help="GPUs (or cores) of the server: the rate is told for one."),
    timeout: float = typer.Option(600.0, min=0.1, help="Seconds after which a request has failed."),
    extra: str = typer.Option("{}", help="JSON that goes into every body, for example '{\"ignore_eos\": true}'."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
) -> None:
    """Drive any OpenAI-compatible server in an open loop; latencies count from when a request was meant to be sent.

    Exit code 0: within the limits; 1: not; 2: wrong usage, no server, or every request failed.
    """
    if endpoint not in ("chat", "completions"):
        raise typer.BadParameter(f"{endpoint!r} is not one of chat, completions", param_hint="--endpoint")
    from checkengine.figures import passed, print_report, report
    from checkengine.loading.attained import Limits

    try:
        from checkengine.loading.measure import LoadOptions, measure
    except ImportError as error:
        raise UserError(f"load needs {error.name}: pip install 'checkengine[proxy]'") from None

    options = LoadOptions(
        profile=profile, url=url, model=model, token=token, data=data, rate=rate, duration=duration, warm_up=warm_up,
        seed=seed, most=max_concurrency, endpoint="chat" if endpoint == "chat" else "completions", scale=scale,
        most_input=max_input, most_output=max_output, limits=Limits(ttft_ms / 1e3, tbt_ms / 1e3, share), search=search,
        units=units, timeout=timeout, extra=_extra(extra),
    )  # fmt: skip
    figures = asyncio.run(measure(options, lambda line: typer.echo(line, err=True)))
    measured = report(f"load --profile {profile} --seed {seed}", figures)
    if as_json:
        typer.echo(json.dumps(measured))
    else:
        print_report(measured)
    raise typer.Exit(0 if passed(measured) else 1)


def _extra(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f"--extra is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError("--extra is no JSON object")
    return found
