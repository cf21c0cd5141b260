"""Row statistics through torch, on any device; the definition that other backends are held to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from checkengine.detectors.logits.fingerprint import NAN_BITS, OFFSET, column_keys
from checkengine.detectors.logits.packed import PackedStats
from checkengine.detectors.logits.pending import DeviceRowStats
from checkengine.detectors.logits.stats import Level, RowStats

_COLUMNS_AT_ONCE = 8192
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_KEYS: dict[torch.device, torch.Tensor] = {}


def row_stats(logits: torch.Tensor, level: Level, first_column: int = 0) -> RowStats:
    """Logits (rows, vocabulary), float dtype, on any device; see RowStats. Waits for the device."""
    return DeviceRowStats(pack(logits, level, first_column)).collect()


def pack(logits: torch.Tensor, level: Level, first_column: int = 0) -> PackedStats:
    """Enqueues the work and reads no value: nothing here waits for the device once its keys are there."""
    packed = PackedStats.empty(logits, level, first_column)
    values = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    nan = values.isnan()
    highest = values.masked_fill(nan, -torch.inf)
    maximum = highest.amax(-1)
    nan_count, positive = nan.sum(-1), (values == torch.inf).sum(-1)
    _fill(packed.counts, (nan_count, positive, (values == -torch.inf).sum(-1)))
    extrema = (maximum, values.masked_fill(nan, torch.inf).amin(-1))
    if level == "screen":
        _fill(packed.floats, extrema)
        return packed
    argmax, margin, runner_up = _top(highest, maximum, nan, nan_count == values.shape[-1])
    logsumexp, entropy, log_total = _distribution(values, maximum, (nan_count > 0) | (positive > 0))
    _fill(packed.floats, (*extrema, logsumexp, entropy, margin, runner_up, log_total))
    _fill(packed.wide, (argmax, _fingerprint(logits, first_column)))
    return packed


def _fill(fields: torch.Tensor, columns: Sequence[torch.Tensor]) -> None:
    for field, column in zip(fields, columns, strict=False):
        field.copy_(column)


def _top(
    highest: torch.Tensor, maximum: torch.Tensor, nan: torch.Tensor, empty: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of equal maxima the first; margin; second largest."""
    argmax = ((highest == maximum[:, None]) & ~nan).to(torch.uint8).argmax(-1)
    if highest.shape[-1] == 1:
        second = torch.full_like(maximum, -torch.inf)
    else:
        second = highest.scatter(1, argmax[:, None], -torch.inf).amax(-1)
    margin = torch.where(maximum == second, torch.zeros_like(maximum), maximum - second)
    return argmax, margin.masked_fill(empty, torch.nan), second


def _distribution(
    values: torch.Tensor, maximum: torch.Tensor, undefined: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """logsumexp, entropy, logsumexp minus maximum; a row of -inf only has logsumexp -inf, else NaN."""
    below = (values.double() - maximum.double()[:, None]).clamp_min(-87.0)
    weight = below.exp()
    total = weight.sum(-1)
    log_total = total.log()
    logsumexp = maximum.double() + log_total
    entropy = log_total - (weight * below).sum(-1) / total
    masked = maximum == -torch.inf
    logsumexp = logsumexp.masked_fill(masked, -torch.inf).masked_fill(undefined, torch.nan)
    unknown = undefined | masked
    return logsumexp, entropy.masked_fill(unknown, torch.nan), log_total.masked_fill(unknown, torch.nan)


def _fingerprint(logits: torch.Tensor, first_column: int) -> torch.Tensor:
    """int64 arithmetic wraps like uint64; the right shift is made logical by a mask."""
    keys = device_keys(first_column + logits.shape[-1], logits.device)[first_column:]
    total = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    for first in range(0, logits.shape[-1], _COLUMNS_AT_ONCE):
        part = logits[:, first : first + _COLUMNS_AT_ONCE]
        product = (_canonical_bits(part) + _signed(OFFSET)) * keys[first : first + part.shape[-1]]
        total += (product ^ _shift_right(product, 32)).sum(-1)
    return total


def _canonical_bits(part: torch.Tensor) -> torch.Tensor:
    own = _BITS[part.dtype]
    bits = part.contiguous().view(own).to(torch.int64)
    canonical = _signed(NAN_BITS[str(part.dtype).removeprefix("torch.")])
    if own is torch.int64:
        return _mix64(bits.masked_fill(part.isnan(), canonical))
    return (bits & ((1 << torch.iinfo(own).bits) - 1)).masked_fill(part.isnan(), canonical)


def _mix64(bits: torch.Tensor) -> torch.Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shift_right(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: torch.Tensor, places: int) -> torch.Tensor:
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def device_keys(columns: int, device: torch.device) -> torch.Tensor:
    """`column_keys` as int64 on a device, copied there once: do that before the engine is ready."""
    known = _KEYS.get(device)
    if known is None or len(known) < columns:
        known = torch.from_numpy(column_keys(columns).view(np.int64).copy()).to(device)
        _KEYS[device] = known
    return known[:columns]
