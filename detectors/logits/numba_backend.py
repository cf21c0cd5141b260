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
from checkengine.detectors.logits.numba_kernel import full_rows, screen_rows
from checkengine.detectors.logits.stats import Level, RowStats

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


def row_stats(logits: torch.Tensor, level: Level) -> RowStats:
    """Logits (rows, vocabulary) in CPU memory; float32, float16 or bfloat16."""
    results = _Results(len(logits), level)
    if logits.dtype == torch.float32:
        _fill(results, logits, logits, level)
    else:
        for first in range(0, len(logits), _ROWS_WIDENED_AT_ONCE):
            own = logits[first : first + _ROWS_WIDENED_AT_ONCE]
            part = _Results(len(own), level)
            _fill(part, own.float(), own, level)
            results.take(part, first)
    return results.row_stats(level)


class _Results:
    """The arrays that the compiled loops fill, for all rows or for some."""

    __slots__ = ("argmax", "counts", "fingerprint", "floats", "nonfinite")

    def __init__(self, rows: int, level: Level) -> None:
        self.floats = np.empty((5, rows), np.float32)
        self.nonfinite = np.empty(rows, np.bool_)
        if level == "full":
            self.counts = np.empty((3, rows), np.int32)
            self.argmax = np.empty(rows, np.int64)
            self.fingerprint = np.empty(rows, np.uint64)

    def take(self, part: _Results, first: int) -> None:
        """A part has arrays of its own: slices would have another memory layout, so another compilation."""
        for name in _Results.__slots__:
            if hasattr(self, name):
                getattr(self, name)[..., first : first + len(part.nonfinite)] = getattr(part, name)

    def row_stats(self, level: Level) -> RowStats:
        floats, nonfinite = self.floats, self.nonfinite
        if level == "screen":
            return RowStats(level, nonfinite, floats[0], floats[1])
        nan, positive, negative = self.counts
        return RowStats(
            level,
            nonfinite,
            maximum=floats[0],
            minimum=floats[1],
            nan=nan,
            positive_infinite=positive,
            negative_infinite=negative,
            argmax=self.argmax,
            logsumexp=floats[2],
            entropy=floats[3],
            margin=floats[4],
            fingerprint=self.fingerprint,
        )


def _fill(results: _Results, wide: torch.Tensor, own: torch.Tensor, level: Level) -> None:
    """`wide` holds the rows as float32; `own` is what the fingerprint is taken of."""
    columns = wide.shape[1]
    values, stride = _flat(wide)
    bits = values.view(np.int32)
    if level == "screen":
        screen_rows(bits, stride, columns, results.floats, results.nonfinite)
        return
    own_bits, own_stride = (bits, stride) if own is wide else _flat_halves(own)
    full_rows(
        values,
        bits,
        stride,
        own_bits,
        own_stride,
        _FORMS[own.dtype],
        column_keys(columns),
        results.floats,
        results.counts,
        results.argmax,
        results.fingerprint,
        results.nonfinite,
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
