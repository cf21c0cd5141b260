"""`checkengine scan`: recorded traffic through the guards."""

from __future__ import annotations

import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from checkengine.guards.errors import UserError, one_line

if TYPE_CHECKING:
    from checkengine.scanning.scan import Scan, Totals

app = typer.Typer(rich_markup_mode=None)

FOUND = 1
UNREADABLE = 2
INTERRUPTED = 130
NO_READER = 141
"""As a shell tells a program that nobody reads any more (SIGPIPE)."""
PROGRESS_SECONDS = 10.0
MOST_WORKERS = 256


class FailOn(StrEnum):
    WARNING = "warning"
    ERROR = "error"


@app.command()
def scan(
    files: list[str] = typer.Argument(metavar="FILE…", help="JSONL: plain, gzip or zstd; - is standard input."),
    guards: str = typer.Option("", help="Only these guards, separated by commas. Default: all that are not off."),
    config: Path | None = typer.Option(None, help="A checkengine.toml with [guards.<name>] tables."),
    tokenizer: Path | None = typer.Option(None, help="A tokenizer.json or a model's folder, for token streams."),
    fail_on: FailOn | None = typer.Option(None, help="Exit 1 where there is a finding this severe or more."),
    summary: bool = typer.Option(False, "--summary", help="Add a table, on stderr."),
    workers: int = typer.Option(1, min=1, max=MOST_WORKERS, help="Processes that read; the order stays."),
) -> None:
    """Read recorded traffic and print one JSON finding per line. Nothing is changed, stopped or sent anywhere.

    A line is a completion {"id", "prompt"?, "completion", "language"?}, a conversation {"id", "messages"},
    a token stream {"id", "token_ids", "prompt_token_ids"?} or a measurement {"series", "t"?, "value"}.

    Exit code 0: scanned; 1: a finding as severe as --fail-on; 2: wrong usage, an input that cannot be opened, or
    every line was bad; 130: interrupted; 141: nobody reads the output any more.
    """
    found = None
    try:
        found = prepare(files, guards, config, tokenizer)
        totals = found.run(files, workers)
    except KeyboardInterrupt:
        tell(f"interrupted after {found.totals.lines if found else 0:,} lines")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # What the interpreter still flushes at its end must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(NO_READER) from None
    report(totals, names_in(guards), summary=summary)
    raise typer.Exit(exit_code(totals, fail_on))


def prepare(files: list[str], guards: str, config: Path | None, tokenizer: Path | None) -> Scan:
    from checkengine.config import load_settings
    from checkengine.scanning.lines import check_inputs
    from checkengine.scanning.registry import chosen_guards
    from checkengine.scanning.scan import Scan
    from checkengine.scanning.workers import Setup

    if sys.stdout is None:
        raise UserError("standard output is closed, and findings are written to it; send them to a file or /dev/null")
    settings = load_settings(config).guards
    setup = Setup(chosen_guards(names_in(guards), settings), settings, tokenizer)
    check_inputs(files)
    if tokenizer is not None and not tokenizer.exists():
        raise UserError(f"--tokenizer {tokenizer} does not exist; give a tokenizer.json or a model's folder")
    return Scan(setup, write, tell, Progress())


def names_in(guards: str) -> list[str]:
    return [name for name in (part.strip() for part in guards.split(",")) if name]


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tell(line: str) -> None:
    say(("\r\x1b[K" if is_terminal() else "") + one_line(line) + "\n")


def is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def say(text: str) -> None:
    """To the person who scans. Findings are worth more: a stderr that is closed or full ends no scan."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
    except OSError:
        # What the interpreter still flushes at its end must not change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class Progress:
    """A line now and then; where stderr is a terminal a running one."""

    def __init__(self) -> None:
        self._terminal = is_terminal()
        self._every = 0.2 if self._terminal else PROGRESS_SECONDS
        self._last = time.monotonic()

    def __call__(self, totals: Totals) -> None:
        now = time.monotonic()
        if now - self._last >= self._every:
            self._last = now
            told = f"{totals.records:,} records, {totals.bytes / 1e6:,.1f} MB, {totals.findings.total():,} findings"
            if self._terminal:
                say(f"\r\x1b[K{told} …")
            else:
                tell(f"{told} …")


def report(totals: Totals, named: list[str], *, summary: bool) -> None:
    from checkengine.scanning.summary import one_line_summary, table_of, unread

    for line in unread(totals, named):
        tell(line)
    tell(one_line_summary(totals))
    if summary:
        say(table_of(totals, terminal=is_terminal()))


def exit_code(totals: Totals, fail_on: FailOn | None) -> int:
    from checkengine.guards.finding import Severity

    if totals.lines and totals.bad == totals.lines:
        return UNREADABLE
    limit = None if fail_on is None else Severity[fail_on.name]
    return FOUND if limit is not None and totals.worst is not None and totals.worst >= limit else 0
