"""`checkengine drill loop`: looped models that blow up are told before a number overflows, stable ones never."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from checkengine.benchmarks.figure import figure
from checkengine.detectors.recurrence import LoopNorms, diverging
from checkengine.detectors.recurrence_hook import watch_recurrence
from checkengine.motion.looped_model import FORMS, Form, LoopedModel

UNSTABLE = (1.1, 1.2, 1.4)
STABLE = (0.5, 0.8, 0.95)
LOOPS = 160
"""At radius 1.1 float16 overflows near loop 120."""
SEQUENCES, TOKENS = 4, 12


@dataclass(frozen=True, slots=True)
class LoopRun:
    """Of one model on one batch; loops count from 1."""

    form: Form
    radius: float
    told: list[int]
    """Loop of each row's finding."""
    estimates: list[float]
    """The radius that each finding tells."""
    overflow: int | None
    """First loop with a value that is not finite."""
    ratio: float
    """Median norm of the last finite state over that of the one before."""
    rows: int


def run(form: Form, radius: float, seed: int, loops: int = LOOPS) -> LoopRun:
    """In float16, where overflow comes soonest."""
    model = LoopedModel(form, radius, loops=loops, seed=seed).half().eval()
    tokens = torch.randint(0, 160, (SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(seed))
    readings: list[LoopNorms] = []
    with watch_recurrence(model.block, readings.append, within=model), torch.inference_mode():
        model(tokens)
    found = diverging(readings[0])
    hidden = readings[0].hidden
    bad = np.flatnonzero(~np.isfinite(hidden).all(1))
    last = int(bad[0]) - 1 if len(bad) else len(hidden) - 1
    ratio = float(np.median(hidden[last] / np.maximum(hidden[last - 1], 1e-9))) if last > 0 else float("nan")
    return LoopRun(
        form,
        radius,
        [each.loop + 1 for each in found],
        [each.radius for each in found],
        int(bad[0]) + 1 if len(bad) else None,
        ratio,
        hidden.shape[1],
    )


def figures(*, quick: bool = False) -> list[dict[str, Any]]:
    seeds = range(2 if quick else 8)
    unstable = [run(form, radius, seed) for form in FORMS[:2] for radius in UNSTABLE for seed in seeds]
    stable = [run(form, radius, seed) for form in FORMS[:2] for radius in STABLE for seed in seeds]
    constrained = [run("constrained", radius, seed) for radius in (*STABLE, *UNSTABLE) for seed in seeds]
    rows = sum(each.rows for each in unstable)
    in_time = sum(sum(loop < (each.overflow or LOOPS + 1) for loop in each.told) for each in unstable)
    errors = [abs(estimate - each.radius) for each in unstable for estimate in each.estimates]
    margins = [each.overflow - max(each.told) for each in unstable if each.overflow and each.told]
    return [
        figure(
            "loop.unstable rows told before a value overflows", in_time / rows, f"share of {rows}", 1, at_least=True
        ),
        figure("loop.told before the overflow by", statistics.median(margins), "loops, median", 1, at_least=True),
        figure("loop.spectral radius estimated, off by", statistics.median(errors), "median", 0.05),
        figure("loop.stable rows told", sum(len(each.told) for each in stable), _of(stable), 0),
        figure("loop.constrained rows told", sum(len(each.told) for each in constrained), _of(constrained), 0),
        figure("loop.constrained, largest norm ratio a loop", max(each.ratio for each in constrained), "", 1.01),
    ]


def _of(runs: list[LoopRun]) -> str:
    return f"rows of {sum(each.rows for each in runs)}, {LOOPS} loops each"
