"""Figures as a table of a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_markdown(measured: Mapping[str, Any]) -> str:
    """A heading line that says what was measured where, and one row a figure."""
    machine = measured["machine"]
    missed = sum(not figure["ok"] for figure in measured["figures"])
    head = f"`checkengine {measured['command']}`, version {measured['version']}, on {machine['processor']}"
    where = f"{head}, {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}"
    lines = [f"{where}: {len(measured['figures'])} figures, {missed} missed.", ""]
    lines += ["| figure | value | target | beside it | |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(_row(figure) for figure in measured["figures"])])


def _row(figure: Mapping[str, Any]) -> str:
    peer = f"{figure['peer']}: {figure['peer_value']:.4g}" if "peer" in figure else str(figure.get("error", ""))
    value = f"{figure['value']:.4g} {figure['unit']}"
    cells = (figure["name"], value, f"{figure['target']:.4g}", peer, "ok" if figure["ok"] else "**missed**")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
