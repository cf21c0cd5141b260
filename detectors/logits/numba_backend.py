"""Row statistics in CPU memory, one thread, compiled by numba to vector instructions.

The row is read twice: once for extrema (as integers that order like floats, so that NaN needs no
care) and fingerprint, block by block while the block is in the first-level cache, and once for the
exponential sums. A finite row never takes the branch that counts.
"""

from __future__ import annotations

from typing import Any

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
    rows, columns = logits.shape
    floats = np.empty((5, rows), np.float32)
    if level == "screen":
        nonfinite = np.empty(rows, np.bool_)
        for first, part, _ in _parts(logits):
            values, stride = _flat(part)
            end = first + len(part)
            screen_rows(values.view(np.int32), stride, columns, floats[:, first:end], nonfinite[first:end])
        return RowStats(level, nonfinite, floats[0], floats[1])
    counts = np.empty((3, rows), np.int32)
    argmax, fingerprint = np.empty(rows, np.int64), np.empty(rows, np.uint64)
    form, keys = _FORMS[logits.dtype], column_keys(columns)
    for first, part, own in _parts(logits):
        values, stride = _flat(part)
        bits = values.view(np.int32)
        own_bits, own_stride = (bits, stride) if own is None else _flat_halves(own)
        end = first + len(part)
        full_rows(
            values,
            bits,
            stride,
            own_bits,
            own_stride,
            form,
            keys,
            floats[:, first:end],
            counts[:, first:end],
            argmax[first:end],
            fingerprint[first:end],
        )
    return RowStats(
        level,
        nonfinite=counts.any(0),
        maximum=floats[0],
        minimum=floats[1],
        nan=counts[0],
        positive_infinite=counts[1],
        negative_infinite=counts[2],
        argmax=argmax,
        logsumexp=floats[2],
        entropy=floats[3],
        margin=floats[4],
        fingerprint=fingerprint,
    )


def _parts(logits: torch.Tensor) -> Any:
    """(first row, float32 rows, the half-precision rows behind them or None)."""
    if logits.dtype == torch.float32:
        yield 0, logits, None
        return
    for first in range(0, len(logits), _ROWS_WIDENED_AT_ONCE):
        own = logits[first : first + _ROWS_WIDENED_AT_ONCE]
        yield first, own.float(), own


def _flat(part: torch.Tensor) -> tuple[NDArray[np.float32], int]:
    """One dimension over the rows' memory and the distance between rows, so that strides cost no copy."""
    if part.stride(1) != 1:
        part = part.contiguous()
    rows, columns = part.shape
    stride = part.stride(0)
    flat: NDArray[np.float32] = part.as_strided((max(rows - 1, 0) * stride + columns,), (1,)).numpy()
    return flat, stride


def _flat_halves(own: torch.Tensor) -> tuple[NDArray[np.uint16], int]:
    if own.stride(1) != 1:
        own = own.contiguous()
    rows, columns = own.shape
    flat = own.as_strided(((rows - 1) * own.stride(0) + columns,), (1,)).view(torch.int16).numpy()
    return flat.view(np.uint16), own.stride(0)
