"""Bands of an input (prompt length, say) within which an output is judged."""

from __future__ import annotations

import numpy as np
from datasketches import kll_floats_sketch  # type: ignore[import-untyped]
from numpy.typing import NDArray


class Bands:
    """Equal shares of the first inputs. They depend on the inputs alone, so outputs stay exchangeable within a band."""

    def __init__(self, bands: int, learn_from: int = 250) -> None:
        self._wanted, self._learn_from = bands, learn_from
        self._sketch: kll_floats_sketch | None = kll_floats_sketch(200)
        self._edges: NDArray[np.float64] = np.empty(0)

    @property
    def ready(self) -> bool:
        return self._sketch is None

    @property
    def edges(self) -> NDArray[np.float64]:
        """Inputs at which a band begins, ascending; empty until `ready`."""
        return self._edges

    def learn(self, value: float) -> None:
        """Until `ready`; an input that is no number is left out."""
        if self._sketch is None or not np.isfinite(value):
            return
        self._sketch.update(float(value))
        if self._sketch.n >= self._learn_from:
            shares = [step / self._wanted for step in range(1, self._wanted)]
            self._edges = np.unique(np.asarray(self._sketch.get_quantiles(shares), np.float64))
            self._sketch = None

    def of(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Shape as `values`; an input that is no number goes to the first band."""
        return np.searchsorted(self._edges, np.nan_to_num(values, nan=-np.inf), side="right").astype(np.int64)
