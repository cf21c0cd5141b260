"""Content-free reproducers of the embedded engine's incidents: the judge over its own weights, on memory of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkengine.engine_shim.bundles import BundleWriter
from checkengine.engine_shim.reproducers import Reproducers
from checkengine.replay.capture import Capture
from checkengine.replay.settings import CaptureSettings

REPLAYS = 120
"""Runs of a step or a call at most; a first incident is no bench."""


def reproduce_embedded(engine: Any, settings: CaptureSettings, writer: BundleWriter) -> Reproducers:
    """`engine` is an embedded Engine."""
    from checkengine.engine_shim.engine.executor import EmbeddedExecutor
    from checkengine.replay.minimise.reproducer import content_free_reproducer

    executor = EmbeddedExecutor.over(engine.model, engine.environment())

    def make(capture: Capture, parent: Path) -> Path | None:
        return content_free_reproducer(
            capture, executor, settings.directory, parent=parent, budget=REPLAYS, whole_window=False
        )

    return Reproducers(make, told=writer.tell)
