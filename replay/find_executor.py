"""Executors by name, found through the entry point group `checkengine.executors`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from checkengine.replay.executor import CannotReplayError, Executor

GROUP = "checkengine.executors"


def find_executor(environment: Mapping[str, Any]) -> Executor:
    """The executor named by environment["engine"], loaded; raises CannotReplayError where none can run the record."""
    name = str(environment.get("engine", ""))
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise CannotReplayError(
            f"the record comes from engine {name!r}, and no executor of that name is installed ({known})"
        )
    executor = cast(Executor, found[name].load()())
    executor.load(environment)
    return executor
