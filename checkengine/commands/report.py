"""`checkengine report BUNDLE -o FILE`: what a bundle tells, as one HTML file that opens offline."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from checkengine.commands.model_option import MODEL
from checkengine.output_file import write_output

if TYPE_CHECKING:
    from checkengine.replay.report import Confidential
    from checkengine.replay.report.tokens import Pieces

app = typer.Typer(rich_markup_mode=None)

LEVELS = ("none", "default", "full")


@app.command()
def report(
    bundle: str = typer.Argument(help="A bundle's directory or URL."),
    out: Path = typer.Option(..., "--out", "-o", help="The HTML file to write."),
    confidential: str = typer.Option("default", help="none, default (names as hashes, numbers) or full (text too)."),
    again: bool = typer.Option(False, "--again", help="Judge again, also where the bundle holds a verdict."),
    judge: bool = typer.Option(True, "--judge/--no-judge", help="Judge where the bundle holds no verdict."),
    model: Path | None = MODEL,
) -> None:
    """Write a report of a bundle: its newest verdict (it is judged now where there is none), findings, tokens, slots.

    Prints the file's path; where there is no verdict, says on stderr why. Exit code 0: written; 129: usage or damaged
    bundle.
    """
    from checkengine.commands.replay import guarded, located
    from checkengine.guards.errors import one_line

    if confidential not in LEVELS:
        raise typer.BadParameter(f"{confidential!r} is not one of {', '.join(LEVELS)}", param_hint="--confidential")
    with tempfile.TemporaryDirectory(prefix="checkengine-") as fetched:

        def run() -> int:
            path = located(bundle, None, None, Path(fetched))
            judged = judged_result(path, again, judge)
            write(path, bundle, out, cast("Confidential", confidential), judged)
            typer.echo(str(out))
            if judged[0] is None:
                typer.echo(f"not judged: {one_line(judged[1])}", err=True)
            return 0

        code = guarded(run)
    raise typer.Exit(code)


def judged_result(path: Path, again: bool, judge: bool) -> tuple[Mapping[str, Any] | None, str]:
    """The newest verdict, or one made now; else nothing and why."""
    from checkengine.commands.replay import investigate_bundle, keep_result
    from checkengine.guards.errors import UserError
    from checkengine.replay.bundle import BundleReader
    from checkengine.replay.report import newest_result, result_json

    BundleReader(path)
    known = None if again else newest_result(path)
    if known is not None or not judge:
        return known, "" if known is not None else "it was not asked for"
    try:
        found = investigate_bundle(path)
    except UserError as error:
        return None, str(error)
    keep_result(found, path)
    return result_json(found), ""


def write(
    path: Path, named: str, out: Path, confidential: Confidential, judged: tuple[Mapping[str, Any] | None, str]
) -> None:
    from checkengine.replay.bundle import BundleReader
    from checkengine.replay.executor import ReplayError
    from checkengine.replay.report import facts_of_bundle, render

    reader = BundleReader(path, "report")
    environment = reader.json("env.json")
    facts = facts_of_bundle(
        reader,
        judged[0],
        confidential=confidential,
        pieces=pieces_of(environment) if confidential != "none" else None,
        here=here(environment),
    )
    facts.why_not, facts.bundle = judged[1], named
    facts.commands = commands(named, facts.findings)
    write_output(out, render(facts, confidential), "the report", ReplayError)


def commands(bundle: str, findings: Any) -> list[tuple[str, str]]:
    from checkengine.commands.main import COMMANDS, _exists

    quoted = shlex.quote(bundle)
    told = [
        ("Replay and judge (exit code 1: the finding fires again; 0: it does not; 125: cannot judge):",
         f"checkengine replay {quoted}"),
        ("Which commit is guilty:", f"git bisect start BAD GOOD\ngit bisect run checkengine replay {quoted}"),
    ]  # fmt: skip
    if "minimise" in COMMANDS and _exists(COMMANDS["minimise"]):
        told.append(
            ("Make it small, and free of content, for a bug report:", f"checkengine minimise {quoted} --content-free")
        )
    told.append(("Hand it on without content:", f"checkengine bundles export {quoted} -o case.checkengine"))
    return told


def here(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    """What decides numbers on this machine, where the record is of the embedded engine."""
    if environment.get("engine") != "embedded":
        return {}
    import torch

    from checkengine.engine_shim.engine.environment import ground

    return {**ground(), "engine": "embedded", "threads": torch.get_num_threads()}


def pieces_of(environment: Mapping[str, Any]) -> Pieces | None:
    """A token's bytes by the recorded model's tokenizer; None where it is not here."""
    from checkengine.detectors.vocabulary import Vocabulary
    from checkengine.engine_shim.models import recorded_model

    try:
        from tokenizers import Tokenizer

        file = recorded_model(str(environment.get("model") or "none")) / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # Of any kind: a report does without text.
        return None
    return Vocabulary.from_tokenizer(tokenizer).piece
