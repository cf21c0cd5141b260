"""How the drift detector's code is compiled, and the random numbers that break ties in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.compiled import compiled_sums as compiled

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15))


@compiled
def scrambled(seed: Any, index: Any) -> Any:
    """A random 64-bit number that depends on nothing but its arguments (splitmix64)."""
    mixed = np.uint64(seed) + np.uint64(index) * _MIX[2]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
    return mixed ^ (mixed >> np.uint64(31))


__all__ = ["compiled", "scrambled"]
