"""What row statistics cost, in interleaved pairs with torch's own reductions on the same logits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from checkengine.detectors.logits import row_stats, warm_up

SHAPES = ((1, 49_152), (8, 49_152), (16, 49_152), (1, 151_936), (16, 151_936))
FULL_MICROSECONDS = {(1, 49_152): 80.0, (16, 49_152): 800.0}
"""Targets on one thread; other shapes are held to torch's logsumexp."""
SCREEN_OVER_SUM = 1.5


def logit_figures(pairs: int = 31) -> list[dict[str, Any]]:
    """Figures as every measuring command prints them: name, value, unit, target, ok, peer, peer_value.

    One thread; medians of `pairs` interleaved rounds. Levels `full` and `screen` beside torch's sum,
    logsumexp and isnan count over the same rows.
    """
    warm_up((torch.float32, torch.bfloat16))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [figure for shape in SHAPES for figure in _figures_of(shape, pairs)] + _half(pairs)
    finally:
        torch.set_num_threads(threads)


def _figures_of(shape: tuple[int, int], pairs: int) -> list[dict[str, Any]]:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3
    full, screen, total, logsumexp, nan = interleaved(
        [
            lambda: row_stats(logits, "full"),
            lambda: row_stats(logits, "screen"),
            lambda: logits.sum(-1),
            lambda: logits.logsumexp(-1),
            lambda: logits.isnan().sum(-1),
        ],
        pairs,
    )
    name = f"{shape[0]} x {shape[1]}"
    target = FULL_MICROSECONDS.get(shape, 1.5 * logsumexp)
    figures = [
        _figure(f"row_stats full {name}", full, target, "torch logsumexp", logsumexp),
        _figure(f"row_stats full against a NaN count {name}", full, nan, "torch isnan().sum(-1)", nan),
    ]
    if shape[0] >= 8:
        figures.append(_figure(f"row_stats screen {name}", screen, SCREEN_OVER_SUM * total, "torch sum", total))
    return figures


def _half(pairs: int) -> list[dict[str, Any]]:
    logits = (torch.randn(16, 49_152, generator=torch.Generator().manual_seed(0)) * 3).bfloat16()
    full, peer = interleaved([lambda: row_stats(logits), lambda: logits.float().logsumexp(-1)], pairs)
    return [_figure("row_stats full 16 x 49152 bfloat16", full, 2 * peer, "torch float().logsumexp(-1)", peer)]


def interleaved(
    actions: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median microseconds of each action; every round runs each once, so that a busy machine hits all alike."""
    for action in actions:
        action()
    taken: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for action, times in zip(actions, taken, strict=True):
            began = clock()
            action()
            times.append((clock() - began) * 1e6)
    return [statistics.median(times) for times in taken]


def _figure(name: str, value: float, target: float, peer: str, peer_value: float) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 1),
        "unit": "us",
        "target": round(target, 1),
        "ok": value <= target,
        "peer": peer,
        "peer_value": round(peer_value, 1),
    }
