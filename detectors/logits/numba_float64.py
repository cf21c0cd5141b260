"""Row statistics of float64 logits in CPU memory: plain loops, right rather than fast."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from checkengine.detectors.compiled import compiled_sums as compiled

_OFFSET = np.uint64(0x9E3779B97F4A7C15)
_CANONICAL_NAN = np.uint64(0x7FF8000000000000)
_FLOOR = -87.0


@compiled
def rows_of_float64(
    values: Any,
    keys: Any,
    floats: Any,
    counts: Any,
    argmax: Any,
    fingerprint: Any,
    nonfinite: Any,
    invalid: Any,
) -> None:
    """`values` is (rows, columns); fills the rest as `full_rows` does."""
    for row in range(len(values)):
        high, second, low, at = -np.inf, -np.inf, np.inf, -1
        nan, positive, negative, total_bits = 0, 0, 0, np.uint64(0)
        bits = values[row].view(np.uint64)
        for i in range(values.shape[1]):
            value = values[row, i]
            if math.isnan(value):
                nan += 1
                total_bits += _term(_CANONICAL_NAN, keys[i])
                continue
            total_bits += _term(bits[i], keys[i])
            positive += value == np.inf
            negative += value == -np.inf
            low = min(low, value)
            if at < 0 or value > high:
                high, second, at = value, high, i
            elif value > second:
                second = value
        counts[0, row], counts[1, row], counts[2, row] = nan, positive, negative
        nonfinite[row], invalid[row] = nan + positive + negative > 0, nan + positive > 0
        argmax[row], fingerprint[row] = at, total_bits
        floats[0, row], floats[1, row], floats[5, row] = high + 0.0, low + 0.0, second + 0.0
        floats[4, row] = np.nan if at < 0 else (0.0 if second == high else high - second)
        floats[2, row], floats[3, row], floats[6, row] = _distribution(values[row], high, invalid[row])


@compiled
def _term(bits: Any, key: Any) -> Any:
    """float64 bits go through a bijection first (fingerprint.mix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    product = ((bits ^ (bits >> np.uint64(31))) + _OFFSET) * key
    return product ^ (product >> np.uint64(32))


@compiled
def _distribution(values: Any, maximum: Any, invalid: Any) -> Any:
    """logsumexp, entropy, logsumexp minus maximum."""
    if invalid or maximum == -np.inf:
        return (np.nan if invalid else -np.inf), np.nan, np.nan
    total, weighted = 0.0, 0.0
    for i in range(len(values)):
        below = max(values[i] - maximum, _FLOOR)
        power = math.exp(below)
        total += power
        weighted += power * below
    log_total = math.log(total)
    return maximum + log_total, log_total - weighted / total, log_total
