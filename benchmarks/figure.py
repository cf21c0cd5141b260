"""One figure of a benchmark, and how sure a ratio is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def figure(
    name: str, value: float, unit: str, target: float, *, at_least: bool = False, peer: tuple[str, float] | None = None
) -> dict[str, Any]:
    """As every measuring command prints it; `ok` where the value is at most (`at_least`: at least) the target."""
    ok = value >= target if at_least else value <= target
    found: dict[str, Any] = {"name": name, "value": value, "unit": unit, "target": target, "ok": bool(ok)}
    return found | ({"peer": peer[0], "peer_value": peer[1]} if peer else {})


def interval(values: Sequence[float], draws: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the median, by bootstrap over `values`."""
    random = np.random.default_rng(seed)
    picks = random.integers(0, len(values), (draws, len(values)))
    medians = np.median(np.asarray(values)[picks], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)
