"""What the proxy costs above a bare relay, and that it passes everything: in interleaved rounds, on this machine.

Processes: a mock upstream, the proxy with all guards, metrics and spool, its own bare relay, a relay of aiohttp; the
load comes from this process. Whatever is measured has a core of its own, mock and load share another one. CPU time is
that of the proxy's process, whatever else the machine does; latencies suffer from every neighbour, so they are only
quoted from a quiet machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from checkengine.benchmarks.proxy_addresses import address_figures
from checkengine.benchmarks.proxy_fleet import FULL, QUICK, Fleet, Size
from checkengine.benchmarks.proxy_healthy import healthy_figures
from checkengine.benchmarks.proxy_holds import leaver_figures, memory_figures, stream_figures
from checkengine.benchmarks.proxy_speed import cost_figures, latency_figures, prompt_figures
from checkengine.guards.errors import UserError

Figures = Iterator[dict[str, Any]]
PARTS: dict[str, Callable[[Fleet, Size], Figures]] = {
    "cost": cost_figures,
    "latency": latency_figures,
    "prompts": prompt_figures,
    "memory": memory_figures,
    "streams": stream_figures,
    "leavers": leaver_figures,
}
ADDRESSES, HEALTHY = "addresses", "healthy"


def proxy_figures(
    data: Path | None = None, only: Sequence[str] = (), *, quick: bool = False, litellm: Path | None = None
) -> Figures:
    """`only`: names of parts; `litellm`: a Python interpreter in whose environment LiteLLM's proxy is installed.
    Raises UserError at once for what is neither. A full run takes about ten minutes."""
    names = (*PARTS, ADDRESSES, HEALTHY)
    if unknown := [name for name in only if name not in names]:
        raise UserError(f"bench proxy has no part {unknown[0]!r}; there are {', '.join(names)}")
    return _figures(data, frozenset(only or names), litellm, quick=quick)


def _figures(data: Path | None, wanted: frozenset[str], litellm: Path | None, *, quick: bool) -> Figures:
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        if wanted & PARTS.keys():
            fleet = Fleet(stack, litellm)
            for name, measure in PARTS.items():
                if name in wanted:
                    yield from measure(fleet, size)
    if ADDRESSES in wanted:
        yield from address_figures(size.examples)
    if HEALTHY in wanted:
        yield from healthy_figures(data, quick=quick)
