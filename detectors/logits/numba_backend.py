"""Row statistics in CPU memory, one thread, compiled by numba to vector instructions.

The row is read twice: once for extrema (as integers that order like floats, so that NaN needs no
care) and fingerprint, block by block while the block is in the first-level cache, and once for the
exponential sums. A finite row never takes the branch that counts.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors.logits.fingerprint import NAN_BITS, column_keys
from checkengine.detectors.logits.numba_float64 import rows_of_float64
from checkengine.detectors.logits.numba_kernel import full_rows, screen_rows
from checkengine.detectors.logits.stats import Level, RowStats

FLOATS = ("maximum", "minimum", "logsumexp", "entropy", "margin", "runner_up", "log_total")
"""Order of the rows of `floats` in the compiled loops."""
_ROWS_WIDENED_AT_ONCE = 16
_FORMS = {
    dtype: np.array([infinity, magnitude, NAN_BITS[name]], np.uint64)
    for dtype, name, infinity, magnitude in (
        (torch.float16, "float16", 0x7C00, 0x7FFF),
        (torch.bfloat16, "bfloat16", 0x7F80, 0x7FFF),
        (torch.float32, "float32", 0x7F800000, 0x7FFFFFFF),
    )
}
"""Bits of +inf, mask of all bits but the sign, bits of the canonical NaN."""


def row_stats(logits: torch.Tensor, level: Level, first_column: int = 0) -> RowStats:
    """Logits (rows, vocabulary) in CPU memory; float32, float16, bfloat16 or float64."""
    keys = column_keys(first_column + logits.shape[1])[first_column:]
    results = _Results(len(logits), level)
    if logits.dtype == torch.float64:
        _fill_float64(results, logits, keys)
    elif logits.dtype == torch.float32:
        _fill(results, logits, logits, keys, level)
    else:
        for first in range(0, len(logits), _ROWS_WIDENED_AT_ONCE):
            own = logits[first : first + _ROWS_WIDENED_AT_ONCE]
            part = _Results(len(own), level)
            _fill(part, own.float(), own, keys, level)
            results.take(part, first)
    return results.row_stats(level, first_column)


class _Results:
    """The arrays that the compiled loops fill, for all rows or for some."""

    __slots__ = ("argmax", "counts", "fingerprint", "floats", "invalid", "nonfinite")

    def __init__(self, rows: int, level: Level) -> None:
        self.floats = np.empty((len(FLOATS), rows), np.float32)
        self.nonfinite = np.empty(rows, np.bool_)
        self.invalid = np.empty(rows, np.bool_)
        if level == "full":
            self.counts = np.empty((3, rows), np.int32)
            self.argmax = np.empty(rows, np.int64)
            self.fingerprint = np.empty(rows, np.uint64)

    def take(self, part: _Results, first: int) -> None:
        """A part has arrays of its own: slices would have another memory layout, so another compilation."""
        for name in _Results.__slots__:
            if hasattr(self, name):
                getattr(self, name)[..., first : first + len(part.nonfinite)] = getattr(part, name)

    def row_stats(self, level: Level, first_column: int) -> RowStats:
        floats, nonfinite, invalid = self.floats, self.nonfinite, self.invalid
        if level == "screen":
            return RowStats(level, nonfinite, floats[0], floats[1], invalid=invalid)
        nan, positive, negative = self.counts
        if first_column:
            self.argmax[self.argmax >= 0] += first_column
        return RowStats(
            level,
            nonfinite,
            **dict(zip(FLOATS, floats, strict=True)),
            nan=nan,
            positive_infinite=positive,
            negative_infinite=negative,
            argmax=self.argmax,
            fingerprint=self.fingerprint,
            invalid=invalid,
        )


def _fill(results: _Results, wide: torch.Tensor, own: torch.Tensor, keys: NDArray[np.uint64], level: Level) -> None:
    """`wide` holds the rows as float32; `own` is what the fingerprint is taken of."""
    values, stride = _flat(wide)
    bits = values.view(np.int32)
    if level == "screen":
        screen_rows(bits, stride, len(keys), results.floats, results.nonfinite, results.invalid)
        return
    own_bits, own_stride = (bits, stride) if own is wide else _flat_halves(own)
    full_rows(
        values,
        bits,
        stride,
        own_bits,
        own_stride,
        _FORMS[own.dtype],
        keys,
        results.floats,
        results.counts,
        results.argmax,
        results.fingerprint,
        results.nonfinite,
        results.invalid,
    )


def _fill_float64(results: _Results, logits: torch.Tensor, keys: NDArray[np.uint64]) -> None:
    """Float64 logits are for checking, not for serving: one loop does both levels."""
    if not hasattr(results, "counts"):
        whole = _Results(len(logits), "full")
        _fill_float64(whole, logits, keys)
        results.take(whole, 0)
        return
    rows_of_float64(
        logits.contiguous().numpy(),
        keys,
        results.floats,
        results.counts,
        results.argmax,
        results.fingerprint,
        results.nonfinite,
        results.invalid,
    )


def _flat(wide: torch.Tensor) -> tuple[NDArray[np.float32], int]:
    """One dimension over the rows' memory and the distance between rows, so that strides cost no copy."""
    if not wide.is_contiguous():
        if wide.stride(1) == 1 and len(wide):
            stride = wide.stride(0)
            return wide.as_strided(((len(wide) - 1) * stride + wide.shape[1],), (1,)).numpy(), stride
        wide = wide.contiguous()
    return wide.numpy().reshape(-1), wide.shape[1]


def _flat_halves(own: torch.Tensor) -> tuple[NDArray[np.uint16], int]:
    return own.contiguous().view(torch.int16).numpy().view(np.uint16).reshape(-1), own.shape[1]
