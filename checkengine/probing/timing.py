"""Times of two pieces of work, taken in turn, on whatever device they run on."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from checkengine.benchmarks.figure import interval

Work = Callable[[], object]


def seconds(work: Work, device: torch.device) -> float:
    """Of one run, the device's own queue included."""
    if device.type == "cuda":
        begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize(device)
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Pairs:
    """Interleaved runs of two works; what disturbs the machine disturbs both alike."""

    def __init__(self, first: Work, second: Work, device: torch.device, *, least: int, budget: float) -> None:
        """At least `least` pairs, and more for as long as `budget` seconds last; two pairs before go uncounted."""
        self.first: list[float] = []
        self.second: list[float] = []
        for _ in range(2):
            first()
            second()
        end = time.perf_counter() + budget
        while len(self.first) < least or (time.perf_counter() < end and len(self.first) < 400):
            self.first.append(seconds(first, device))
            self.second.append(seconds(second, device))

    @property
    def medians(self) -> tuple[float, float]:
        return median(self.first), median(self.second)

    def ratio(self) -> tuple[float, float, float]:
        """Second over first: median of the pairs' ratios and its 95 % interval."""
        ratios = [second / first for first, second in zip(self.first, self.second, strict=True)]
        return (median(ratios), *interval(ratios))
