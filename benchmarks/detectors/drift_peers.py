"""river's ADWIN, KSWIN and Page-Hinkley (BSD-3, `pip install checkengine[bench]`) at their defaults, same series."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

PEERS = ("ADWIN", "KSWIN", "PageHinkley")


def available() -> bool:
    try:
        importlib.import_module("river.drift")
    except ImportError:
        print("drift: river is not installed, its figures are left out", file=sys.stderr)
        return False
    return True


def make(name: str) -> Any:
    detector = getattr(importlib.import_module("river.drift"), name)
    return detector(seed=0) if name == "KSWIN" else detector()


def alarms(name: str, values: NDArray[np.float64]) -> list[int]:
    """Indices at which the detector told a drift; it starts again by itself."""
    detector = make(name)
    return [index for index, value in enumerate(values.tolist()) if _tells(detector, value)]


def first_after(name: str, values: NDArray[np.float64], change: int) -> float:
    """Values from the change to the next alarm; infinite where there is none. Alarms before the change count not."""
    return next((float(index - change + 1) for index in alarms(name, values) if index >= change), np.inf)


def nanoseconds(name: str, values: NDArray[np.float64]) -> float:
    began = time.process_time_ns()
    alarms(name, values)
    return (time.process_time_ns() - began) / len(values)


def names(quick: bool) -> Iterator[str]:
    """KSWIN takes a third of a millisecond an update."""
    yield from (peer for peer in PEERS if not (quick and peer == "KSWIN"))


def _tells(detector: Any, value: float) -> bool:
    detector.update(value)
    return bool(detector.drift_detected)
