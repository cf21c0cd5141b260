"""Figures of measuring commands (`bench`, `selftest`, `drill`): one shape as JSON, one table for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checkengine import __version__

Figure = Mapping[str, Any]
"""name, value, unit, target, ok; peer and peer_value where something was measured beside it."""


def report(command: str, figures: Sequence[Figure]) -> dict[str, Any]:
    """{"command", "version", "machine", "figures"}."""
    return {"command": command, "version": __version__, "machine": machine(), "figures": [dict(f) for f in figures]}


def passed(measured: Mapping[str, Any]) -> bool:
    """Whether every figure of a report met its target."""
    return all(figure["ok"] for figure in measured["figures"])


def machine() -> dict[str, Any]:
    """What decides speed and bits on this machine; no host name."""
    import torch

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def processor(file: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name where Linux tells it."""
    try:
        names = [
            line.partition(":")[2].strip() for line in file.read_text().splitlines() if line.startswith("model name")
        ]
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def line_of(figure: Figure) -> str:
    """For who waits while it is measured."""
    missed = "" if figure["ok"] else f" MISSED, the target is {figure['target']:.4g}"
    return f"{figure['name']}: {figure['value']:.4g} {figure['unit']}".rstrip() + missed


def print_report(measured: Mapping[str, Any]) -> None:
    """A table on stdout."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("figure", "value", "target", "", title=f"checkengine {measured['command']}")
    for figure in measured["figures"]:
        peer = f"  ({figure['peer']}: {figure['peer_value']:.4g})" if "peer" in figure else ""
        value = f"{figure['value']:.4g} {figure['unit']}{peer}"
        value += f"\n{escape(figure['error'])}" if "error" in figure else ""
        table.add_row(figure["name"], value, f"{figure['target']:.4g}", "ok" if figure["ok"] else "[bold red]MISSED")
    Console().print(table)
