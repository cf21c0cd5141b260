"""Series for measuring the drift detector: healthy ones of many shapes, and changes of a known size."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.compiled import compiled

Floats = NDArray[np.float64]
Make = Callable[[np.random.Generator, int], Floats]

TRACES = {"azure_code": "azure_code.csv.gz", "azure_conv": "azure_conv.csv.gz"}
MOONCAKE = "mooncake_conversation.jsonl.gz"
AUTOREGRESSION = 0.5
FINISH_REASONS = (0.93, 0.05, 0.02)
"""stop, length, tool_calls."""


def independent() -> dict[str, Make]:
    """Independent draws; every shape that the detector's theorem covers must be quiet."""
    return {
        "normal": lambda random, n: random.normal(size=n),
        "normal clipped": lambda random, n: np.clip(random.normal(0.5, 0.15, n), 0, 1),
        "uniform": lambda random, n: random.random(n),
        "exponential": lambda random, n: random.exponential(size=n),
        "lognormal 1": lambda random, n: random.lognormal(5, 1, n),
        "lognormal 2": lambda random, n: random.lognormal(3, 2, n),
        "student 3": lambda random, n: random.standard_t(3, n),
        "student 2": lambda random, n: random.standard_t(2, n),
        "cauchy": lambda random, n: random.standard_cauchy(n),
        "pareto 1.2": lambda random, n: random.pareto(1.2, n),
        "two humps": lambda random, n: random.normal(size=n) + 6.0 * (random.random(n) < 0.3),
        "beta": lambda random, n: random.beta(8, 2, n),
        "poisson 3": lambda random, n: random.poisson(3, n).astype(float),
        "geometric lengths": lambda random, n: random.geometric(1 / 180, n).astype(float),
        "lengths cut at 256": lambda random, n: np.minimum(random.lognormal(5, 1, n).round(), 256.0),
        "accepted of 5": lambda random, n: random.binomial(5, 0.7, n) / 5,
        "valid or not": lambda random, n: (random.random(n) < 0.99).astype(float),
        "mostly zero": lambda random, n: np.where(random.random(n) < 0.97, 0.0, random.exponential(size=n)),
    }


def autoregressive() -> dict[str, Make]:
    """No theorem covers these: the detector fits a first-order autoregression, and the figure is empirical."""
    return {
        "AR(0.5) normal": lambda random, n: recursive(random.normal(size=n), AUTOREGRESSION),
        "AR(0.5) student 4": lambda random, n: recursive(random.standard_t(4, n), AUTOREGRESSION),
    }


def shuffled(name: str, values: Floats) -> Make:
    """A real trace in random order, drawn anew for each stretch."""
    return lambda random, n: random.choice(values, n)


@compiled
def recursive(noise: Floats, weight: float) -> Floats:
    made = noise.copy()
    for index in range(1, len(made)):
        made[index] += weight * made[index - 1]
    return made


def traces(data: Path | None) -> dict[str, tuple[Floats, Floats]]:
    """Input and output lengths of each trace in its real order; a missing file is named on stderr."""
    found: dict[str, tuple[Floats, Floats]] = {}
    for name, file in {**TRACES, "mooncake": MOONCAKE}.items():
        path = data / file if data else None
        if path is None or not path.is_file():
            print(f"drift: no {file}, its figures are left out", file=sys.stderr)
            continue
        found[name] = _mooncake(path) if file == MOONCAKE else _azure(path)
    return found


def _azure(path: Path) -> tuple[Floats, Floats]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [(float(row["ContextTokens"]), float(row["GeneratedTokens"])) for row in csv.DictReader(lines)]
    return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])


def _mooncake(path: Path) -> tuple[Floats, Floats]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return np.array([float(row["input_length"]) for row in rows]), np.array(
        [float(row["output_length"]) for row in rows]
    )


def mixed(random: np.random.Generator, n: int) -> tuple[NDArray[np.int64], Floats]:
    """Bands of prompts whose mix swings over the stretch, and completions that depend on the band and nothing else."""
    swing = 0.5 + 0.45 * np.sin(np.arange(n) / n * 6 * np.pi)
    bands = random.integers(0, 5, n) + 5 * (random.random(n) < swing)
    return bands, (random.lognormal(0, 0.8, n) * (20.0 + 40.0 * bands)).round()
