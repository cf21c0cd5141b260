"""`checkengine probe`: what a machine can do for a model, measured before one is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from checkengine.guards.errors import UserError
from checkengine.output_file import write_output

if TYPE_CHECKING:
    from checkengine.probing.gaps import Gaps

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _probe() -> None:
    """Probe this machine."""


@app.command()
def residency(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of tables."),
    device: str = typer.Option("cpu", "--device", help="torch's name of the device: cpu, cuda, cuda:1."),
    dtype: str = typer.Option("float32", "--dtype", help="float32, bfloat16 or float16."),
    seconds: float = typer.Option(60.0, "--seconds", min=1, max=3600, help="About how long to measure."),
    memory: str = typer.Option("4G", "--memory", help="What eight copies of the largest weight may take."),
    cache: str = typer.Option("", "--cache", help="The last cache level's size, where the device does not tell it."),
    on_chip: str = typer.Option("238.4M", "--on-chip", help="An on-chip memory that a loop block should fit."),
    eager: bool = typer.Option(False, "--eager", help="Leave out what must be compiled first."),
    plot: Path | None = typer.Option(None, "--plot", help="Write the curve to this SVG file."),
) -> None:
    """Does sharing weights among loops save memory traffic here, and up to which size?"""
    from checkengine.probing.caches import bytes_of
    from checkengine.probing.residency import DTYPES, ProbeOptions, probe

    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype!r} is none of {', '.join(DTYPES)}")
    options = ProbeOptions(
        device, dtype, seconds, bytes_of(memory), bytes_of(cache) if cache else None, bytes_of(on_chip), eager
    )
    found = probe(options, lambda line: typer.echo(line, err=True))
    if plot is not None:
        from checkengine.probing.plot import as_svg

        write_output(plot, as_svg(found), "the plot")
    if as_json:
        typer.echo(json.dumps(found.as_json()))
    else:
        from rich.console import Console

        from checkengine.probing.words import print_residency

        print_residency(found, Console())


@app.command()
def gaps(
    trace: Path | None = typer.Argument(None, help="A trace of torch's profiler, .json or .json.gz, of any engine."),
    model: str = typer.Option("smollm2-135m", "--model", help="Without a trace: the model that is profiled."),
    device: str = typer.Option("cpu", "--device", help="torch's name of the device: cpu, cuda, cuda:1."),
    dtype: str = typer.Option("float32", "--dtype", help="float32, bfloat16 or float16."),
    rows: int = typer.Option(16, "--rows", min=1, max=4096, help="Sequences that decode together."),
    steps: int = typer.Option(10, "--steps", min=1, max=1000, help="Decode steps to profile."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of lines."),
) -> None:
    """How long does the device wait between two launches? Gaps that only a profiler can see."""
    from checkengine.probing.gaps import gaps_in

    told: dict[str, float] = {}
    if trace is not None:
        found = gaps_in(trace)
    else:
        found, told = _profiled(model, device, dtype, rows, steps)
    if as_json:
        typer.echo(json.dumps({**told, "gaps": [each.as_json() for each in found]}))
        return
    for each in found:
        typer.echo(
            f"{each.where}: {each.launches} launches in {1e3 * each.seconds:.1f} ms, busy {100 * each.busy:.1f} %; "
            f"gaps: median {1e6 * each.median:.1f} us, p99 {1e6 * each.p99:.1f} us, longest {1e6 * each.longest:.1f} us"
        )
    if told:
        typer.echo(
            f"a step takes {1e3 * told['step_seconds']:.2f} ms, {1e3 * told['profiled_step_seconds']:.2f} ms profiled"
        )


def _profiled(model: str, device: str, dtype: str, rows: int, steps: int) -> tuple[list[Gaps], dict[str, float]]:
    import torch

    from checkengine.engine_shim.engine.load import load_model
    from checkengine.engine_shim.models import model_directory
    from checkengine.probing.gaps import profiled
    from checkengine.probing.residency import DTYPES

    if dtype not in DTYPES:
        raise UserError(f"--dtype {dtype!r} is none of {', '.join(DTYPES)}")
    loaded, _ = load_model(model_directory(model), DTYPES[dtype])
    try:
        loaded = loaded.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {device} cannot be used: {str(error).splitlines()[0]}") from None
    found = profiled(loaded, rows, steps)
    told = {"step_seconds": found.step_seconds, "profiled_step_seconds": found.profiled_step_seconds}
    return found.gaps, told
