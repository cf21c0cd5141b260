"""`checkengine replay BUNDLE`: re-run a captured bundle and judge it; made for `git bisect run`."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import typer

from checkengine.commands.model_option import MODEL

if TYPE_CHECKING:
    from checkengine.replay.capture import Capture
    from checkengine.replay.investigate import Investigation
    from checkengine.replay.replayer import Progress

app = typer.Typer(rich_markup_mode=None)


@app.command()
def replay(
    bundle: str | None = typer.Argument(None, help="A bundle's directory or URL, or the file of a KV transfer."),
    store: str | None = typer.Option(None, help="Directory or URL of bundles; with --incident, instead of BUNDLE."),
    incident: str | None = typer.Option(None, help="The incident whose first bundle is replayed."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a summary."),
    report: Path | None = typer.Option(None, help="Write an HTML report that opens offline."),
    fan_out: str | None = typer.Option(
        None, help="Replay all bundles of --store: local (a pool here), or print the job for kubernetes, slurm or ray."
    ),
    workers: int = typer.Option(4, min=1, help="Bundles at a time, with --fan-out."),
    results: Path = typer.Option(Path("checkengine-results"), help="Where --fan-out local keeps a result a bundle."),
    image: str = typer.Option("checkengine", help="Container image, with --fan-out kubernetes."),
    kernel: str | None = typer.Option(None, help="Replay with this kernel instead of the recorded one; no verdict."),
    executor: str | None = typer.Option(
        None, help="Replay with this executor: the record's engine, or embedded for a bundle from vLLM (float64 too)."
    ),
    model: Path | None = MODEL,
    confidential: str = typer.Option("default", help="Identifiers in the report: none, default (hashes) or full."),
    repeats: int = typer.Option(
        20, min=0, help="Runs of a convicting step, in up to three fresh processes; 0: none but the two in this one."
    ),
    matrix: list[str] = typer.Option(
        [], help="Replay on this host too, through ssh, and compare; local:NAME=VALUE is this machine, so set."
    ),
    matrix_command: str | None = typer.Option(None, help="How a host replays what comes in; {host} is its name."),
    bits: bool = typer.Option(False, hidden=True, help="With --json: bits of every op, for --matrix to compare."),
) -> None:
    """Re-run a captured bundle.

    Exit code 1: the recorded finding fires again; 0: it does not; 125: cannot judge; 129: usage or damaged bundle.
    """
    if confidential not in ("none", "default", "full"):
        raise typer.BadParameter(f"{confidential!r} is not one of none, default, full", param_hint="--confidential")
    if (fan_out is not None or matrix) and (kernel is not None or executor is not None):
        raise typer.BadParameter("--kernel and --executor are for one bundle here, without --fan-out and --matrix")
    if fan_out is not None:
        raise typer.Exit(guarded(lambda: fanned(fan_out, store or bundle, workers, results, image)))
    if (bundle is None) == (store is None) or (store is None) != (incident is None):
        raise typer.BadParameter("give either a bundle, or --store and --incident")
    names = cast(Literal["none", "default", "full"], confidential)
    with tempfile.TemporaryDirectory(prefix="checkengine-") as fetched:

        def run() -> int:
            path = located(bundle, store, incident, Path(fetched))
            if path.suffix == ".transfer":
                from checkengine.commands.replay_transfer import examine_transfer

                return examine_transfer(path, as_json)
            if matrix:
                from checkengine.commands.replay_matrix import matrix_of
                from checkengine.replay.matrix import SSH

                return matrix_of(path, matrix, matrix_command or SSH, as_json)
            return examine(path, kernel, as_json, report, names, repeats=repeats, bits=bits, executor=executor)

        code = guarded(run)
    raise typer.Exit(code)


def fanned(where: str, store: str | None, workers: int, results: Path, image: str) -> int:
    """All bundles of a store. Exit code 1 where one is reproduced, 125 where one could not be judged, else 0."""
    from checkengine.fanning import local, schedulers
    from checkengine.fanning.ledger import Ledger
    from checkengine.replay.bundle import BundleError, BundleStore

    makers = {
        "kubernetes": lambda names, url: schedulers.kubernetes(names, url, workers, image),
        "slurm": lambda names, url: schedulers.slurm(names, url, workers),
        "ray": lambda names, url: schedulers.ray(names, url, workers),
    }
    if where != "local" and where not in makers:
        raise typer.BadParameter(f"{where!r} is not one of local, {', '.join(makers)}", param_hint="--fan-out")
    if store is None:
        raise typer.BadParameter("--fan-out needs --store: a directory of bundles or its URL")
    names = BundleStore(store).names()
    if not names:
        raise BundleError(f"there are no bundles in {store}")
    if where != "local":
        typer.echo(makers[where](names, store))
        return 0
    counts = local.run_all(names, local.replay_command(store), Ledger(results), workers)
    typer.echo(json.dumps(counts))
    return 1 if counts.get("reproduced") else 0 if set(counts) == {"not reproduced"} else 125


def located(bundle: str | None, store: str | None, incident: str | None, fetched: Path) -> Path:
    """The bundle's folder; what lies in an object store is brought into `fetched`."""
    from checkengine.replay.bundle import BundleError, BundleStore, fetch, is_url

    if bundle == "-":
        from checkengine.commands.replay_matrix import received

        return received(fetched)
    if bundle is not None:
        return fetch(bundle, fetched) if is_url(bundle) else Path(bundle)
    assert store is not None
    assert incident is not None
    if not is_url(store) and not Path(store).is_dir():
        raise BundleError(f"there is no folder {store}: give a directory of bundles or its URL")
    bundles = BundleStore(store)
    names = bundles.of_incident(incident)
    if not names:
        raise BundleError(f"no bundle of incident {incident} in {store}: `checkengine bundles ls` lists what is there")
    return bundles.pull(names[0], fetched) if is_url(store) else Path(store) / names[0]


def examine(
    bundle: Path,
    kernel: str | None,
    as_json: bool,
    report: Path | None,
    confidential: Literal["none", "default", "full"],
    *,
    repeats: int = 0,
    bits: bool = False,
    executor: str | None = None,
) -> int:
    """Investigate, keep and tell; returns the exit code of the verdict."""
    found = investigate_bundle(bundle, kernel=kernel, quiet=as_json, repeats=repeats, executor=executor)
    keep_result(found, bundle)
    if report is not None:
        write_report(found, report, bundle, confidential)
    if as_json:
        from checkengine.replay.matrix import bits_of

        told = found.to_dict() | ({"bits": bits_of(found.forced)} if bits else {})
        typer.echo(json.dumps(told, allow_nan=False, default=str))
    else:
        from checkengine.commands.replay_summary import print_summary

        print_summary(found, report)
    return found.exit_code


def keep_result(found: Investigation, bundle: Path) -> None:
    """Into the bundle's results, where it can be written: a verdict on a read-only copy is as good."""
    from checkengine.replay.bundle import BundleError, append_result
    from checkengine.replay.report import result_json

    try:
        append_result(bundle, result_json(found))
    except BundleError as error:
        typer.echo(f"note: {error}", err=True)


def investigate_bundle(
    path: Path,
    *,
    kernel: str | None = None,
    quiet: bool = False,
    repeats: int = 0,
    progress: Progress | None = None,
    executor: str | None = None,
) -> Investigation:
    """Everything that one bundle can tell. BundleError for a damaged one, CannotReplayError where nothing can run.

    `repeats`: runs in fresh processes before a conviction; `progress` is told instead of a bar on the terminal;
    `executor`: another one than the record's engine.
    """
    from checkengine.executors import for_executor, refused
    from checkengine.guards.errors import UserError
    from checkengine.replay.bundle import BundleReader
    from checkengine.replay.bundle.calls import holds_call
    from checkengine.replay.executor import CannotReplayError, NoSuchChoiceError
    from checkengine.replay.minimise.investigate_call import investigate_call

    reader = BundleReader(path)
    if holds_call(reader):
        engine = str(reader.json("env.json").get("engine", ""))
        if executor not in (None, engine):
            raise refused(engine, str(executor), engine)
        return investigate_call(reader, bundle=str(path), kernel=kernel)
    capture = reader.capture()
    try:
        told = for_executor(capture, executor)
        return investigate_capture(told, str(path), kernel=kernel, quiet=quiet, repeats=repeats, progress=progress)
    except NoSuchChoiceError:
        raise
    except UserError as error:
        # Whatever it is (a model that is not here), git bisect must not take it for a verdict.
        raise CannotReplayError(str(error)) from error


def investigate_capture(
    capture: Capture,
    bundle: str,
    *,
    kernel: str | None = None,
    quiet: bool = True,
    repeats: int = 0,
    progress: Progress | None = None,
) -> Investigation:
    from checkengine.replay.executor import WeightsChangedError
    from checkengine.replay.find_executor import find_executor, refuse_kernel, unloaded
    from checkengine.replay.investigate import Investigation, investigate
    from checkengine.replay.judge.gate import PROCESSES, Gate
    from checkengine.replay.judge.judge import weights_changed
    from checkengine.replay_guards import replay_guards, vocabulary_of

    refuse_kernel(unloaded(capture.environment), kernel)
    try:
        executor = find_executor(capture.environment)
    except WeightsChangedError as error:
        finding = capture.findings[0] if capture.findings else None
        verdict = weights_changed(error)
        return Investigation(bundle, capture.findings, capture.environment, finding=finding, verdict=verdict)
    guards = replay_guards(vocabulary_of(capture.environment), capture.environment)
    gate = Gate(capture.environment, repeats, min(PROCESSES, repeats)) if repeats else None
    with progress_bar(quiet or progress is not None) as bar:
        told = progress or bar
        return investigate(
            capture, executor, guards, bundle=bundle, kernel=kernel, gate=gate, weights=True, progress=told
        )


def guarded(investigation: Callable[[], int]) -> int:
    """An error of ours, or an output that cannot be written, must not read as "reproduced": Python's own exit code for
    a traceback is 1, and typer's for a closed pipe is, too."""
    from checkengine.guards.errors import UserError
    from checkengine.replay.executor import CannotReplayError
    from checkengine.replay.investigate import CANNOT_JUDGE

    try:
        return investigation()
    except UserError:
        raise
    except OSError as error:
        raise CannotReplayError(f"the replay cannot go on or tell its outcome: {error}") from None
    except Exception:
        traceback.print_exc()
        raise typer.Exit(CANNOT_JUDGE) from None


class progress_bar:
    """A bar on stderr where it is a terminal; nothing else otherwise."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet or not sys.stderr.isatty()

    def __enter__(self) -> Progress | None:
        if self._quiet:
            return None
        from rich.console import Console
        from rich.progress import Progress as Bar

        self._bar = Bar(console=Console(stderr=True), transient=True)
        self._bar.start()
        task = self._bar.add_task("replay")

        def show(kernel: str, done: int, steps: int) -> None:
            self._bar.update(task, description=f"replay, {kernel} kernel", completed=done, total=steps)

        return show

    def __exit__(self, *error: object) -> None:
        if not self._quiet:
            self._bar.stop()


def write_report(
    found: Investigation, report: Path, bundle: Path, confidential: Literal["none", "default", "full"]
) -> None:
    from checkengine.commands.report import write
    from checkengine.replay.report import result_json

    write(bundle, str(bundle), report, confidential, (result_json(found), ""))
