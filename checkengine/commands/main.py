"""The `checkengine` command: one module a command, imported when it is called.

Importing torch takes seconds, so `--help` and shell completion must not load any command.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from checkengine import __version__
from checkengine.guards.errors import UserError, one_line

USAGE = 2
"""Exit code of a wrong command line."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command lives in `checkengine.commands.<module>` as a Typer object named `app`."""

    module: str
    help: str
    usage_exit_code: int = USAGE
    failure_exit_code: int = USAGE
    """Where the machine fails it: a full disk, an output that nobody takes."""


COMMANDS: dict[str, CommandEntry] = {
    "demo": CommandEntry("demo", "Serve a real model, plant faults, catch, capture and replay them."),
    "models": CommandEntry("models", "Fetch and list models for the demo and the tests."),
    "serve": CommandEntry("serve", "Serve a model with guards over an OpenAI-compatible API."),
    "dashboard": CommandEntry("dashboard", "Incidents, replicas and bundles in a browser; replays from there."),
    "proxy": CommandEntry("proxy", "Guards in front of any OpenAI-compatible server."),
    "worker": CommandEntry("worker", "Take replays that the dashboard asked for, on this machine."),
    "replay": CommandEntry("replay", "Re-run a captured bundle; made for git bisect run.", 129, 125),
    "report": CommandEntry("report", "What a bundle tells, as one HTML file that opens offline.", 129, 125),
    "arm": CommandEntry("arm", "Capture steps that meet a condition, for a while, on a running server."),
    "switch": CommandEntry("switch", "Switch a guard, or all of checkengine, off or on in running vLLM engines."),
    "minimise": CommandEntry("minimise", "Shrink a convicted bundle to the least that shows its fault.", 129, 125),
    "bundles": CommandEntry("bundles", "List, show, export, hold and erase captured bundles."),
    "scan": CommandEntry("scan", "Read recorded traffic through the guards: try them on yesterday's logs."),
    "audit": CommandEntry("audit", "Show what was audited of live traffic, and what that proves."),
    "rescore": CommandEntry("rescore", "Would the model have written it? Scores outputs on a healthy executor."),
    "probe": CommandEntry("probe", "What this machine can do for a looped model, before one is served."),
    "load": CommandEntry("load", "Drive a server with a known workload; the highest rate within its limits."),
    "drill": CommandEntry("drill", "Plant faults in KV transfers, tiers, ranks and loops, and see them caught."),
    "bench": CommandEntry("bench", "Measure what checkengine costs and what it catches."),
    "selftest": CommandEntry("selftest", "Check this installation on this machine."),
    "doctor": CommandEntry("doctor", "Say what the installed engines offer, and what will be off in them."),
    "collect": CommandEntry("collect", "Bring findings from the spools into the catalog."),
    "db": CommandEntry("db", "Upgrade, check and tidy the catalog."),
    "alerts": CommandEntry("alerts", "Prometheus rules and Grafana dashboards for a deployment."),
    "config": CommandEntry("config", "Check a checkengine.toml."),
}


class LazyGroup(TyperGroup):
    """Lists commands from the table; loads the one that is called.

    Untyped where the base class is: newer releases of typer carry a click of their own.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, entry in COMMANDS.items() if _exists(entry)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        if entry is None or not _exists(entry):
            return None
        return TyperCommand(cmd_name, help=entry.help, short_help=entry.help, rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name and command else command, rest


def load_command(name: str) -> Any:
    """Import the command's module and turn its `app` into a click command of that name."""
    module = importlib.import_module(_module_name(COMMANDS[name]))
    command = typer.main.get_command(module.app)
    command.name = name
    return command


def _module_name(entry: CommandEntry) -> str:
    return f"checkengine.commands.{entry.module}"


def _exists(entry: CommandEntry) -> bool:
    return importlib.util.find_spec(_module_name(entry)) is not None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """The check-engine light for LLM inference: guards, a black box and bit-exact replay."""


def run() -> None:
    """Console script. A `UserError` becomes one line on stderr and its exit code, and so does a disk that is full."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path need not be text, and a terminal need not know every letter.
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        print(f"checkengine: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        print(f"checkengine: {one_line(str(error))}", file=sys.stderr)
        raise SystemExit(_entry(sys.argv[1:]).failure_exit_code) from None
    except SystemExit as stop:
        raise SystemExit(_entry(sys.argv[1:]).usage_exit_code if stop.code == USAGE else stop.code) from None


def _entry(arguments: list[str]) -> CommandEntry:
    """git bisect would take 2 for a verdict, so replay has exit codes of its own."""
    names = [argument for argument in arguments if argument in COMMANDS]
    return COMMANDS[names[0]] if names else CommandEntry("main", "")
