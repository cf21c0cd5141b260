"""Row statistics on CUDA and ROCm, in one reading of the logits and without waiting for the device.

Each program reads one stretch of one row in lanes of its own (no reduction inside the loop), then a small
kernel joins the stretches of a row. Importing this module needs triton; whoever has no GPU needs neither.
"""

from __future__ import annotations

import torch
import triton

from checkengine.detectors.logits.packed import PackedStats
from checkengine.detectors.logits.pending import DeviceRowStats
from checkengine.detectors.logits.stats import Level, RowStats
from checkengine.detectors.logits.torch_backend import device_keys
from checkengine.detectors.logits.triton_kernel import join_stretches, read_stretches

LANES = 1024
"""Columns that a program reads at a time."""
STRETCH = 8 * LANES
"""Fewest columns worth a program of their own."""
MOST_STRETCHES = 64
PROGRAMS = 1024
"""Enough to fill a large GPU; a batch with more rows than this reads each row in one stretch."""
_WORDS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
DTYPES = tuple(_WORDS)


def row_stats(logits: torch.Tensor, level: Level, first_column: int = 0) -> RowStats:
    """Logits (rows, vocabulary), float32, float16 or bfloat16; see RowStats. Waits for the device."""
    return DeviceRowStats(pack(logits, level, first_column)).collect()


def pack(logits: torch.Tensor, level: Level, first_column: int = 0) -> PackedStats:
    """Enqueues two kernels on the current stream and returns."""
    packed = PackedStats.empty(logits, level, first_column)
    rows, columns = logits.shape
    if not rows:
        return packed
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    stretches = stretches_of(rows, columns)
    width = triton.cdiv(triton.cdiv(columns, stretches), LANES) * LANES
    floats = torch.empty((6, rows, stretches), dtype=torch.float32, device=logits.device)
    counts = torch.empty((3, rows, stretches), dtype=torch.int32, device=logits.device)
    wide = torch.empty((2, rows, stretches), dtype=torch.int64, device=logits.device)
    read_stretches[(rows, stretches)](
        logits.view(_WORDS[logits.dtype]),
        logits.stride(0),
        columns,
        width,
        device_keys(first_column + columns, logits.device)[first_column:],
        floats,
        counts,
        wide,
        rows * stretches,
        FORMAT=_FORMATS[logits.dtype],
        FULL=level == "full",
        LANES=LANES,
    )
    join_stretches[(rows,)](
        floats,
        counts,
        wide,
        rows * stretches,
        stretches,
        packed.floats,
        packed.counts,
        packed.wide,
        rows,
        FULL=level == "full",
        STRETCHES=triton.next_power_of_2(stretches),
    )
    return packed


def stretches_of(rows: int, columns: int) -> int:
    """Programs that share a row: enough to fill the device, each with enough to do."""
    most = min(MOST_STRETCHES, triton.cdiv(columns, STRETCH))
    return int(max(1, min(most, PROGRAMS // max(rows, 1))))
