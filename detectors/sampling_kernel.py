"""The compiled pass of `detectors.sampling` over a row of logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkengine.detectors.compiled import compiled_sums

BLOCK = 2048
_FLOOR = np.float32(-80.0)
_CENTRE = np.float32(-0.625)
_SCALE = np.float32(np.exp(-0.625))


@compiled_sums
def _exp(x: Any) -> Any:
    """e^x for x <= 0 as (e^(x / 64))^64, x no lower than -80: no branch and no table, so that a loop becomes vector
    code. Relative error 1e-5."""
    x = x if x > _FLOOR else _FLOOR
    z = x * np.float32(1 / 64) - _CENTRE
    y = np.float32(1 / 40320)
    y = y * z + np.float32(1 / 5040)
    y = y * z + np.float32(1 / 720)
    y = y * z + np.float32(1 / 120)
    y = y * z + np.float32(1 / 24)
    y = y * z + np.float32(1 / 6)
    y = y * z + np.float32(0.5)
    y = y * z + np.float32(1)
    y = y * z + np.float32(1)
    y = y * _SCALE
    y = y * y
    y = y * y
    y = y * y
    y = y * y
    y = y * y
    return y * y


@compiled_sums
def _block(values: Any, maximum: Any, border: Any, best: Any, inverse: Any, floor: Any) -> Any:
    """Count above `border`; masses of the best ones, of the others, of those of them that are no further than `floor`
    below the maximum, and of those above `border`."""
    larger = 0
    top, rest, near, above = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    zero = np.float32(0)
    for i in range(len(values)):
        below = values[i] - maximum
        mass = _exp(below * inverse)
        is_larger = values[i] > border
        is_best = values[i] >= best
        larger += is_larger
        above += mass if is_larger else zero
        top += mass if is_best else zero
        rest += zero if is_best else mass
        near += zero if is_best or below < floor else mass
    return larger, top, rest, near, above


@compiled_sums
def read_rows(
    values: Any,
    maximum: Any,
    chosen: Any,
    ties: Any,
    inverse: Any,
    floor: Any,
    larger: Any,
    masses: Any,
) -> None:
    """Fills `larger` and `masses` (four, as `_block` tells them), relative to e^maximum."""
    columns = values.shape[1]
    for row in range(len(maximum)):
        count, top, rest, near, above = 0, 0.0, 0.0, 0.0, 0.0
        border, best = chosen[row] + ties[row], maximum[row] - ties[row]
        for first in range(0, columns, BLOCK):
            part = values[row, first : first + BLOCK]
            found = _block(part, maximum[row], border, best, inverse[row], floor[row])
            count += found[0]
            top += found[1]
            rest += found[2]
            near += found[3]
            above += found[4]
        larger[row] = count
        masses[0, row], masses[1, row], masses[2, row], masses[3, row] = top, rest, near, above
