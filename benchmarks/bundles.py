"""Bundles under attack: processes killed while they capture, hostile bundles, and the memory that these take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checkengine.benchmarks.bundle_crashes import UNKILLED, crash_in_process
from checkengine.benchmarks.bundle_fuzz import Samples, fuzz
from checkengine.benchmarks.bundle_samples import small_capture
from checkengine.benchmarks.figure import figure

LIVES = 1112
"""A thousand of them are killed, the others come to their end."""
HOSTILE = 50_000
"""A million takes an hour: `python -m checkengine.benchmarks.bundle_fuzz 1000000`."""
MEASURED = 500
DIMENSION = 2048
"""Of the bundle whose memory is measured: 2.5 MiB, so that what every reader needs is small beside it."""


def bundle_figures(lives: int = LIVES, hostile: int = HOSTILE, measured: int = MEASURED) -> Iterator[dict[str, Any]]:
    """Minutes."""
    crashes = crash_in_process(lives)
    wrong = {"first_wrong": "; ".join(crashes.unsound[:3])}
    yield figure(
        "crash.killed", crashes.killed, "processes", killed_of(lives), at_least=True, peer=("lives", crashes.lives)
    )
    yield figure("crash.committed", crashes.committed, "bundles", 1, at_least=True, peer=("torn", crashes.torn))
    yield {**figure("crash.unsound", len(crashes.unsound), "faults", 0), **wrong}
    yield figure("crash.unaccounted", unaccounted(crashes), "triggers", 0, peer=("triggers", crashes.triggers))
    told = fuzz(hostile)
    untyped = figure("fuzz.untyped", len(told.untyped), "errors", 0, peer=("hostile bundles", told.cases))
    yield {**untyped, "first_wrong": "; ".join(told.untyped[:3])}
    memory = fuzz(measured, 1, Samples(small_capture(dimension=DIMENSION)), traced=1.0)
    ratio = figure("fuzz.memory", memory.largest_ratio, "times declared", 2.0, peer=("measured", memory.cases))
    yield {**ratio, "first_wrong": "; ".join(memory.untyped[:3])}


def killed_of(lives: int) -> int:
    """One in so many comes to its end."""
    return lives - lives // UNKILLED


def unaccounted(crashes: Any) -> int:
    known = crashes.dropped + crashes.committed + crashes.torn + crashes.lost_in_memory
    return abs(int(crashes.triggers) - int(known))
