"""`checkengine bench`: what checkengine costs and what it catches, measured on this machine."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from checkengine.guards.errors import UserError

app = typer.Typer(rich_markup_mode=None)

BENCHMARKS: dict[str, tuple[str, str]] = {
    "logits": ("logits", "logit_figures"),
    "recorder": ("recorder", "recorder_figures"),
    "vllm-recorder": ("vllm_recorder", "vllm_recorder_figures"),
    "tokens": ("tokens", "token_figures"),
    "guards": ("guards", "guard_figures"),
    "engine": ("engine", "engine_figures"),
    "replay": ("replay", "replay_figures"),
    "judge": ("judge", "judge_figures"),
    "minimise": ("minimise", "minimise_figures"),
    "bundles": ("bundles", "bundle_figures"),
    "clean": ("clean", "clean_figures"),
    "faults": ("corpus_faults", "corpus_figures"),
    "audit": ("audit", "audit_figures"),
    "routing": ("routing", "routing_figures"),
    "proxy": ("proxy", "proxy_figures"),
    "store": ("store", "store_figures"),
    "store-crashes": ("store", "crash_figures"),
    "motion": ("motion", "motion_figures"),
    "detectors": ("detectors.run", "detector_figures"),
    "vllm": ("vllm_overhead", "vllm_figures"),
    "vllm-replay": ("vllm_replay", "vllm_replay_figures"),
}
"""Module in checkengine.benchmarks, and its function; the quick ones first."""
VLLM, VLLM_REPLAY = "vllm", "vllm-replay"
"""Need vLLM in the environment, and minutes: not among all."""
READ_DATA = ("tokens", "routing", "proxy", "motion")
DETECTORS, PROXY = "detectors", "proxy"
HAVE_PARTS = (DETECTORS, PROXY)
HAVE_SLICES = (DETECTORS, "faults", "store", "store-crashes", "routing", "proxy", "motion", VLLM)


@app.command()
def bench(
    name: str = typer.Argument("all", help=f"One of {', '.join(BENCHMARKS)}, all."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
    markdown: bool = typer.Option(False, "--markdown", help="Print a table for a document."),
    data: Path | None = typer.Option(None, "--data", help="Folder of public data; what is missing there is named."),
    quick: bool = typer.Option(
        False, "--quick", help="detectors, faults, routing, vllm: a slice of the work, in two minutes, not fifteen."
    ),
    only: list[str] = typer.Option([], "--only", help="detectors, proxy: this part only; may be given more than once."),
    windows: int | None = typer.Option(None, min=1, help="vllm-replay: windows to record and replay; 10 by default."),
    litellm: Path | None = typer.Option(
        None, help="proxy: a Python in whose environment litellm[proxy] is installed, to measure it beside ours."
    ),
) -> None:
    """Measure what checkengine costs and what it catches. Exit 1 when a figure misses its target."""
    names = tuple(each for each in BENCHMARKS if each not in (VLLM, VLLM_REPLAY)) if name == "all" else (name,)
    if name != "all" and name not in BENCHMARKS:
        raise UserError(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}, all")
    if (quick and name not in HAVE_SLICES) or (only and name not in HAVE_PARTS):
        raise UserError(
            f"--quick and --only belong to `bench {DETECTORS}` and `bench {PROXY}` (--quick to `bench faults`, "
            f"`bench routing` and `bench {VLLM}` too), not to `bench {name}`"
        )
    if windows is not None and name != VLLM_REPLAY:
        raise UserError(f"--windows belongs to `bench {VLLM_REPLAY}`, not to `bench {name}`")
    if litellm is not None and name != PROXY:
        raise UserError(f"--litellm belongs to `bench {PROXY}`, not to `bench {name}`")
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data} is no folder; leave it out to measure without public data")
    from checkengine.figures import passed, print_report, report

    figures = [
        figure
        for each in names
        for figure in figures_of(each, data, quick=quick, only=only, windows=windows, litellm=litellm)
    ]
    options = [*(["--quick"] if quick else []), *(f"--only {each}" for each in only)]
    options += [f"--windows {windows}"] if windows else []
    measured = report(" ".join(["bench", name, *options]), figures)
    if as_json:
        typer.echo(json.dumps(measured))
    elif markdown:
        from checkengine.figures_markdown import as_markdown

        typer.echo(as_markdown(measured))
    else:
        print_report(measured)
    raise typer.Exit(0 if passed(measured) else 1)


def figures_of(
    name: str,
    data: Path | None,
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    windows: int | None = None,
    litellm: Path | None = None,
) -> list[dict[str, Any]]:
    module, function = BENCHMARKS[name]
    typer.echo(f"bench {name} …", err=True)
    measure = getattr(importlib.import_module(f"checkengine.benchmarks.{module}"), function)
    figures: list[dict[str, Any]]
    if name == DETECTORS:
        from checkengine.benchmarks.detectors import DetectorOptions

        figures = measure(DetectorOptions(data, quick), only, lambda line: typer.echo(line, err=True))
    elif name == PROXY:
        figures = list(told(measure(data, only, quick=quick, litellm=litellm)))
    elif windows is not None:
        figures = measure(windows)
    else:
        measured = measure(*([data] if name in READ_DATA else []), **({"quick": True} if quick else {}))
        figures = measured if isinstance(measured, list) else list(told(measured))
    return figures


def told(measured: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each figure of a long benchmark as soon as it is there, on standard error."""
    from checkengine.figures import line_of

    for figure in measured:
        typer.echo(line_of(figure), err=True)
        yield figure
