"""Executors by name, found through the entry point group `checkengine.executors`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from checkengine.replay.executor import CannotReplayError, Executor, NoSuchChoiceError

GROUP = "checkengine.executors"


def find_executor(environment: Mapping[str, Any]) -> Executor:
    """The executor named by environment["engine"], loaded; raises CannotReplayError where none can run the record."""
    executor = unloaded(environment)
    executor.load(environment)
    return executor


def refuse_kernel(executor: object, kernel: str | None) -> None:
    """NoSuchChoiceError where the executor has no kernel of this name. Asked before a model is loaded."""
    kernels = getattr(executor, "kernels", None)
    if kernel is not None and kernels is not None and kernel not in kernels:
        name = getattr(executor, "name", "")
        raise NoSuchChoiceError(f"--kernel: no kernel named {kernel!r}; the executor {name} has {', '.join(kernels)}")


def unloaded(environment: Mapping[str, Any]) -> Executor:
    """The same, without a model. CannotReplayError where there is none."""
    name = str(environment.get("engine", ""))
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise CannotReplayError(
            f"the record comes from engine {name!r}, and no executor of that name is installed ({known})"
        )
    return cast(Executor, found[name].load()())
