"""The modules of the detectors' benchmark one after another. A module that fails is a failing figure, never a crash."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from checkengine.benchmarks.detectors import MODULES, DetectorOptions
from checkengine.benchmarks.figure import figure
from checkengine.guards.errors import UserError, one_line
from checkengine.guards.failure import place

MOST_SECONDS = 900.0
MOST_SECONDS_QUICK = 120.0
PACKAGE = "checkengine.benchmarks.detectors"


def detector_figures(
    options: DetectorOptions, only: Sequence[str] = (), tell: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Every module's figures, or those of `only`; `tell` gets a line for each module. Raises UserError for a name
    that is no module. The last figure is what all of them took."""
    if unknown := [name for name in only if name not in MODULES]:
        raise UserError(f"there is no detector benchmark {unknown[0]!r}; there are {', '.join(MODULES)}")
    began = time.perf_counter()
    figures: list[dict[str, Any]] = []
    for name in only or MODULES:
        tell(f"bench detectors {name} …")
        module_began = time.perf_counter()
        figures += module_figures(name, options)
        tell(f"bench detectors {name}: {time.perf_counter() - module_began:.1f} s")
    most = MOST_SECONDS_QUICK if options.quick else MOST_SECONDS
    return [*figures, figure("detectors.seconds", round(time.perf_counter() - began, 1), "s", most)]


def module_figures(name: str, options: DetectorOptions) -> list[dict[str, Any]]:
    try:
        measure = importlib.import_module(f"{PACKAGE}.{name}").figures
        figures: list[dict[str, Any]] = measure(options)
        return figures
    except Exception as error:
        told = one_line(f"{type(error).__name__} {place(error)}: {error}")[:300]
        return [figure(f"{name}: did not run", 1, "failures", 0) | {"error": told}]
