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


class Share:
    """Time for a number of things, one after another: what one leaves over goes to the others."""

    def __init__(self, seconds: float, things: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._end, self._things = clock, clock() + seconds, things

    @property
    def left(self) -> float:
        """Seconds; 0 when it is over."""
        return max(0.0, self._end - self._clock())

    def take(self) -> float:
        """Seconds for the next thing, all that it needs before it is measured included."""
        share = self.left / max(1, self._things)
        self._things -= 1
        return share


MOST = 400
GRACE = 0.5
"""Seconds over the end that reaching `least` may take."""
FEWEST = 3
"""Pairs, however short the time."""


class Pairs:
    """Interleaved runs of two works; what disturbs the machine disturbs both alike."""

    def __init__(self, first: Work, second: Work, device: torch.device, *, least: int, ends: float) -> None:
        """`least` pairs and more until `ends` on time.perf_counter, or FEWEST where that is sooner; a pair before goes
        uncounted."""
        self.first: list[float] = []
        self.second: list[float] = []
        first()
        second()
        while (
            (len(self.first) < least and time.perf_counter() < ends + GRACE)
            or len(self.first) < FEWEST
            or (time.perf_counter() < ends and len(self.first) < MOST)
        ):
            self.first.append(seconds(first, device))
            self.second.append(seconds(second, device))

    @property
    def medians(self) -> tuple[float, float]:
        return median(self.first), median(self.second)

    def ratio(self) -> tuple[float, float, float]:
        """Second over first: median of the pairs' ratios and its 95 % interval."""
        ratios = [second / first for first, second in zip(self.first, self.second, strict=True)]
        return (median(ratios), *interval(ratios))
