"""Bundles under attack: processes killed while they capture, hostile bundles, and the memory that these take."""

from __future__ import annotations

from typing import Any

from checkengine.benchmarks.bundle_crashes import crash_in_process
from checkengine.benchmarks.bundle_fuzz import Samples, fuzz
from checkengine.benchmarks.bundle_samples import small_capture
from checkengine.benchmarks.figure import figure

LIVES = 1000
HOSTILE = 50_000
"""A million takes an hour: `python -m checkengine.benchmarks.bundle_fuzz 1000000`."""
MEASURED = 500
DIMENSION = 2048
"""Of the bundle whose memory is measured: 2.5 MiB, so that what every reader needs is small beside it."""


def bundle_figures(lives: int = LIVES, hostile: int = HOSTILE, measured: int = MEASURED) -> list[dict[str, Any]]:
    """Minutes."""
    crashes = crash_in_process(lives)
    told = fuzz(hostile)
    memory = fuzz(measured, 1, Samples(small_capture(dimension=DIMENSION)), traced=1.0)
    wrong = {"first_wrong": "; ".join([*crashes.unsound, *told.untyped, *memory.untyped][:3])}
    return [
        figure("crash.killed", crashes.killed, "processes", 0.9 * lives, at_least=True, peer=("lives", crashes.lives)),
        figure("crash.committed", crashes.committed, "bundles", 1, at_least=True, peer=("torn", crashes.torn)),
        {**figure("crash.unsound", len(crashes.unsound), "faults", 0), **wrong},
        figure("crash.unaccounted", unaccounted(crashes), "triggers", 0, peer=("triggers", crashes.triggers)),
        figure("fuzz.untyped", len(told.untyped), "errors", 0, peer=("hostile bundles", told.cases)),
        figure("fuzz.memory", memory.largest_ratio, "times declared", 2.0, peer=("measured", memory.cases)),
    ]


def unaccounted(crashes: Any) -> int:
    known = crashes.dropped + crashes.committed + crashes.torn + crashes.lost_in_memory
    return abs(int(crashes.triggers) - int(known))
