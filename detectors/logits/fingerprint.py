"""The fingerprint of a row of logits, defined once; every backend computes exactly this.

With `bits(i)` the element's own bits as an unsigned number (float32: 32, half types: 16,
float64: 64 folded through a bijection), NaN made canonical, and `key(i)` a fixed odd 64-bit
random number of the column:

    product = (bits(i) + OFFSET) * key(i)            mod 2^64
    fingerprint = sum of product ^ (product >> 32)   mod 2^64

The sum commutes, so partial sums over shards of the vocabulary add up to the whole. An odd key
makes each term a bijection of the element: no change of a single element is ever missed. Several
changes cancel only where random keys make them (about 2^-32 for sign bits, less elsewhere);
the shift spreads a high bit's change, which a product alone keeps in the top bits.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

OFFSET = 0x9E3779B97F4A7C15
NAN_BITS = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
_KEY_SEED = 0x636865636B656E67

_keys: NDArray[np.uint64] = np.zeros(0, np.uint64)
_growing = threading.Lock()


def mix64(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers (Steele, Lea, Flood 2014, with Stafford's constants)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def column_keys(columns: int) -> NDArray[np.uint64]:
    """Odd keys of columns 0 … columns - 1, shape (columns,); read-only, made once and kept."""
    global _keys
    if len(_keys) < columns:
        with _growing:
            if len(_keys) < columns:
                counter = np.arange(1, columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
                grown = mix64(counter + np.uint64(_KEY_SEED)) | np.uint64(1)
                grown.flags.writeable = False
                _keys = grown
    return _keys[:columns]


def fingerprint_of_bits(bits: NDArray[np.uint64], first_column: int = 0) -> int:
    """Fingerprint of one row, or of a shard that starts at `first_column`; bits already canonical."""
    keys = column_keys(first_column + len(bits))[first_column:]
    product = (bits + np.uint64(OFFSET)) * keys
    return int((product ^ (product >> np.uint64(32))).sum(dtype=np.uint64))
