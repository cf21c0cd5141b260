"""Row statistics through torch, on any device; the definition that other backends are held to."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors.logits.fingerprint import NAN_BITS, OFFSET, column_keys
from checkengine.detectors.logits.stats import Level, RowStats

_COLUMNS_AT_ONCE = 8192
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_KEYS: dict[torch.device, torch.Tensor] = {}


def row_stats(logits: torch.Tensor, level: Level) -> RowStats:
    """Logits (rows, vocabulary), float dtype, on any device; see RowStats."""
    values = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    nan = values.isnan()
    highest = values.masked_fill(nan, -torch.inf)
    maximum = highest.amax(-1)
    minimum = values.masked_fill(nan, torch.inf).amin(-1)
    nonfinite = nan.any(-1) | maximum.isinf() | minimum.isinf()
    if level == "screen":
        return RowStats(level, _numpy(nonfinite), _float32(maximum), _float32(minimum))
    nan_count = nan.sum(-1, dtype=torch.int32)
    positive = (values == torch.inf).sum(-1, dtype=torch.int32)
    argmax, margin = _top(highest, maximum, nan_count == values.shape[-1])
    logsumexp, entropy = _distribution(values, maximum, (nan_count > 0) | (positive > 0))
    return RowStats(
        level,
        nonfinite=_numpy(nonfinite),
        maximum=_float32(maximum),
        minimum=_float32(minimum),
        nan=_numpy(nan_count),
        positive_infinite=_numpy(positive),
        negative_infinite=_numpy((values == -torch.inf).sum(-1, dtype=torch.int32)),
        argmax=_numpy(argmax),
        logsumexp=_float32(logsumexp),
        entropy=_float32(entropy),
        margin=_float32(margin),
        fingerprint=_numpy(_fingerprint(logits)).view(np.uint64),
    )


def _top(highest: torch.Tensor, maximum: torch.Tensor, empty: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    argmax = (highest == maximum[:, None]).to(torch.uint8).argmax(-1)
    if highest.shape[-1] == 1:
        second = torch.full_like(maximum, -torch.inf)
    else:
        second = highest.scatter(1, argmax[:, None], -torch.inf).amax(-1)
    margin = torch.where(maximum == second, torch.zeros_like(maximum), maximum - second)
    return argmax.masked_fill(empty, -1), margin.masked_fill(empty, torch.nan)


def _distribution(
    values: torch.Tensor, maximum: torch.Tensor, undefined: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """logsumexp and entropy; a row of -inf only has logsumexp -inf and no entropy (NaN)."""
    below = (values.double() - maximum.double()[:, None]).clamp_min(-87.0)
    weight = below.exp()
    total = weight.sum(-1)
    logsumexp = maximum.double() + total.log()
    entropy = total.log() - (weight * below).sum(-1) / total
    masked = maximum == -torch.inf
    logsumexp = logsumexp.masked_fill(masked, -torch.inf).masked_fill(undefined, torch.nan)
    return logsumexp, entropy.masked_fill(undefined | masked, torch.nan)


def _fingerprint(logits: torch.Tensor) -> torch.Tensor:
    """int64 arithmetic wraps like uint64; the right shift is made logical by a mask."""
    keys = _keys(logits.shape[-1], logits.device)
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


def _keys(columns: int, device: torch.device) -> torch.Tensor:
    known = _KEYS.get(device)
    if known is None or len(known) < columns:
        known = torch.from_numpy(column_keys(columns).view(np.int64).copy()).to(device)
        _KEYS[device] = known
    return known[:columns]


def _float32(values: torch.Tensor) -> NDArray[np.float32]:
    # Adding zero turns -0.0 into +0.0: which of two equal zeros wins is the backend's accident.
    return _numpy(values.to(torch.float32) + 0.0)


def _numpy(values: torch.Tensor) -> NDArray:  # type: ignore[type-arg]
    return values.cpu().numpy()
