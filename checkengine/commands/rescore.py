"""`checkengine rescore`: would the healthy model have written it?"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from checkengine.replay.rescore import Rescored

app = typer.Typer(rich_markup_mode=None)

SHOWN = 12
"""Suspicious tokens of one output that the summary lists."""


@app.command()
def rescore(
    what: str = typer.Argument(metavar="BUNDLE|FILE.jsonl", help="A bundle with content, or outputs as lines of JSON."),
    model: str | None = typer.Option(None, help="Score in this process: a model's directory or name."),
    url: str | None = typer.Option(None, help="Score on a healthy sibling: address of an OpenAI-compatible server."),
    served_model: str | None = typer.Option(
        None, help="The model's name there, with --url. Default: the first listed."
    ),
    dialect: str = typer.Option("auto", help="With --url: prompt_logprobs, echo, or auto."),
    token: str | None = typer.Option(None, envvar="CHECKENGINE_API_KEY", help="Bearer token, with --url."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object an output; it holds token ids."),
) -> None:
    """Score prompt and output on a healthy executor: habit of the model, or corruption?

    A line is {"id", "prompt_token_ids", "token_ids"} or {"id", "prompt", "completion"}, with the request's
    "temperature", "top_p", "top_k", "min_p" beside it. Without --model and --url a bundle is scored with its own model.

    Exit code 0: every output is the model's habit; 1: one is corruption; 125: one could not be told; 2: wrong usage.
    """
    if model is not None and url is not None:
        raise typer.BadParameter("give --model or --url, not both")
    if dialect not in ("auto", "prompt_logprobs", "echo"):
        raise typer.BadParameter(f"{dialect!r} is not one of auto, prompt_logprobs, echo", param_hint="--dialect")
    from checkengine.rescoring import Sibling, rescore_all

    sibling = Sibling(url, served_model, dialect, token) if url is not None else None
    outcomes = set()
    for found in rescore_all(Path(what), model, sibling):
        outcomes.add(str(found.outcome))
        typer.echo(json.dumps(found.to_dict(), allow_nan=False) if as_json else summary(found))
    raise typer.Exit(1 if "corruption" in outcomes else 125 if "inconclusive" in outcomes else 0)


def summary(found: Rescored) -> str:
    """No text and no token ids: ranks and probabilities only."""
    from checkengine.replay.rescore.evidence import ALARM

    lines = [f"{found.name}: {found.outcome}: {found.sentence} (score {found.score:.1f}, alarm {-math.log(ALARM):.1f})"]
    suspicious = found.suspicious()
    for index in suspicious[:SHOWN]:
        score = found.tokens[index]
        rank = f"rank {score.rank}" if score.rank is not None else "behind all that were listed"
        where = "inside" if score.in_nucleus else f"{score.beyond:.1f} nats outside"
        lines.append(
            f"  token {index}: {found.verdicts[index]}, {rank}, logprob {score.logprob:.2f}, {where} the nucleus"
        )
    if len(suspicious) > SHOWN:
        lines.append(f"  and {len(suspicious) - SHOWN} more")
    return "\n".join(lines)
