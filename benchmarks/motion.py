"""`checkengine bench motion`: KV that moves between tiers, and ranks that die, at the size of a benchmark.

In this order: what a seal costs, planted transfer faults, where a returning conversation's blocks are found, its first
token with and without a prefetch, and a hundred random kills of ranks. Ten minutes at most on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checkengine.motion import expert_loss
from checkengine.motion.lru import TRACE, lecture_hits, mooncake_hits
from checkengine.motion.seal_speed import seal_figures
from checkengine.motion.tiers import planted_figures, returning_figures

KILLS, QUICK_KILLS = 100, 10
SEEDS, QUICK_SEEDS = 10, 1
"""Planted faults a class and side."""


def motion_figures(data: Path | None = None, *, quick: bool = False) -> Iterator[dict[str, Any]]:
    """Each as soon as it is measured. The Mooncake trace is left out where `data` does not hold it."""
    yield from seal_figures()
    yield from planted_figures(QUICK_SEEDS if quick else SEEDS)
    yield from lecture_hits(quick=quick)
    if data is not None and (data / TRACE).is_file():
        yield from mooncake_hits(data)
    if not quick:
        yield from returning_figures()
    yield from expert_loss.kill_figures(expert_loss.run_clean(), QUICK_KILLS if quick else KILLS)
