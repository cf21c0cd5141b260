"""What a series looked like: quantiles of all its values and its last few values, for a person to read.

The quantiles are a KLL sketch (Karnin, Lang, Liberty 2016; Apache DataSketches): of any two replicas' sketches the
merge is again a sketch of both, with the same error, whatever the order. No alarm is decided by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from datasketches import kll_floats_sketch  # type: ignore[import-untyped]
from numpy.typing import NDArray

RECENT = 64
"""Last values that are kept."""
LARGEST = float(np.finfo(np.float32).max)


class Summary:
    """`size`: KLL's k; ranks are off by 2.7 % at 100 and 8 % at 32, 1.4 KB and 0.7 KB whatever the traffic."""

    def __init__(self, size: int = 100) -> None:
        self._sketch = kll_floats_sketch(size)
        self._recent = np.zeros(RECENT, np.float32)
        self._seen = 0
        self._waiting = 0
        """Last values that the sketch has not taken yet: it takes many at once far faster."""

    def __len__(self) -> int:
        return int(self._sketch.n) + self._waiting

    @property
    def state_bytes(self) -> int:
        return len(self._sketch.serialize()) + self._recent.nbytes

    def add(self, values: NDArray[np.float64]) -> None:
        """Values that are no numbers are left out; what float32 cannot hold counts as the largest that it can."""
        finite = np.clip(values[np.isfinite(values)], -LARGEST, LARGEST).astype(np.float32)
        while len(finite):
            place = self._seen % RECENT
            taken = finite[: RECENT - place]
            self._recent[place : place + len(taken)] = taken
            self._seen += len(taken)
            self._waiting += len(taken)
            finite = finite[len(taken) :]
            if self._seen % RECENT == 0:
                self._feed()

    def _feed(self) -> None:
        if self._waiting:
            end = (self._seen - 1) % RECENT + 1
            self._sketch.update(self._recent[end - self._waiting : end])
            self._waiting = 0

    def merge(self, other: Summary) -> None:
        """The quantiles become those of both; the recent values stay this one's."""
        self._feed()
        other._feed()
        self._sketch.merge(other._sketch)

    def quantiles(self, at: Sequence[float]) -> list[float]:
        self._feed()
        return [float(each) for each in self._sketch.get_quantiles(list(at))] if len(self) else [float("nan")] * len(at)

    def recent_quantiles(self, at: Sequence[float]) -> list[float]:
        recent = self._recent[: min(self._seen, RECENT)]
        return [float(each) for each in np.quantile(recent, at)] if len(recent) else [float("nan")] * len(at)
