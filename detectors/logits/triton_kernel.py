"""The Triton kernels: a running top two, exponential sums, counts and fingerprint in each lane, then one reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_CANONICAL_NAN: Any = tl.constexpr((0x7FC00000, 0x7E00, 0x7FC0))
"""By format: float32, float16, bfloat16."""


def kernel(function: Callable[..., Any]) -> Any:
    return triton.jit(function)


@kernel
def _as_float32(word: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    if FORMAT == 0:
        return word.to(tl.float32, bitcast=True)
    if FORMAT == 1:
        return word.to(tl.float16, bitcast=True).to(tl.float32)
    # bfloat16 is the upper half of a float32.
    return (word.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@kernel
def _fingerprint_terms(
    word: tl.tensor, nan: tl.tensor, keys: tl.tensor, FORMAT: tl.constexpr, CANONICAL: tl.constexpr
) -> tl.tensor:
    """As detectors/logits/fingerprint.py defines them, as int64; 64-bit arithmetic wraps."""
    if FORMAT == 0:
        bits = word.to(tl.uint32, bitcast=True).to(tl.uint64)
    else:
        bits = word.to(tl.uint16, bitcast=True).to(tl.uint64)
    bits = tl.where(nan, tl.full(bits.shape, CANONICAL, tl.uint64), bits)
    product = (bits + 0x9E3779B97F4A7C15) * keys.to(tl.uint64, bitcast=True)
    return (product ^ (product >> 32)).to(tl.int64, bitcast=True)


@kernel
def _joined(high: tl.tensor, second: tl.tensor, index: tl.tensor, total: tl.tensor, weighted: tl.tensor) -> tl.tensor:
    """Lanes (or stretches) to one: maximum, second largest, lowest index, exponential sums at the maximum."""
    top = tl.max(high, 0)
    at = tl.min(tl.where(high == top, index, 0x7FFFFFFFFFFFFFFF), 0)
    runner_up = tl.max(tl.where((high == top) & (index == at), second, high), 0)
    below = tl.maximum(tl.where(high == float("-inf"), -87.0, high - top), -87.0)
    scale = tl.where(high == float("-inf"), 0.0, tl.exp(below))
    return top, runner_up, at, tl.sum(total * scale, 0), tl.sum(scale * (weighted + total * below), 0)


@kernel
def read_stretches(
    words: tl.tensor,
    stride: tl.tensor,
    columns: tl.tensor,
    width: tl.tensor,
    keys: tl.tensor,
    floats: tl.tensor,
    counts: tl.tensor,
    wide: tl.tensor,
    field: tl.tensor,
    FORMAT: tl.constexpr,
    FULL: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Program (row, stretch) reads `width` columns; `field` is the distance between the fields of the results."""
    row, stretch = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, LANES)
    begin = stretch * width
    high = tl.full((LANES,), float("-inf"), tl.float32)
    second = tl.full((LANES,), float("-inf"), tl.float32)
    low = tl.full((LANES,), float("inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    weighted = tl.zeros((LANES,), tl.float32)
    # Until a number has been seen, the first column of the lane stands for its largest.
    index = begin.to(tl.int64) + lane
    nan = tl.zeros((LANES,), tl.int32)
    positive = tl.zeros((LANES,), tl.int32)
    negative = tl.zeros((LANES,), tl.int32)
    seen = tl.zeros((LANES,), tl.int32)
    fingerprint = tl.zeros((LANES,), tl.int64)
    for first in range(begin, min(begin + width, columns), LANES):
        at = first + lane
        inside = at < columns
        word = tl.load(words + row * stride + at, mask=inside, other=0)
        raw = _as_float32(word, FORMAT)
        is_nan = inside & (raw != raw)
        number = inside & (raw == raw)
        value = tl.where(number, raw, float("-inf"))
        nan += is_nan.to(tl.int32)
        positive += (number & (raw == float("inf"))).to(tl.int32)
        negative += (number & (raw == float("-inf"))).to(tl.int32)
        low = tl.minimum(low, tl.where(number, raw, float("inf")))
        if FULL:
            key = tl.load(keys + at, mask=inside, other=0)
            term = _fingerprint_terms(word, is_nan, key, FORMAT, _CANONICAL_NAN[FORMAT])
            fingerprint += tl.where(inside, term, 0)
            larger = number & ((value > high) | (seen == 0))
            index = tl.where(larger, at, index)
            seen = tl.where(number, 1, seen)
            counted = value > float("-inf")
            step = tl.where(counted & (high > float("-inf")), value - high, 0.0)
            step = tl.maximum(tl.minimum(step, 87.0), -87.0)
            power = tl.exp(-tl.abs(step))
            rises = step > 0
            weighted = tl.where(rises, power * (weighted - step * total), weighted + power * step)
            total = tl.where(rises, total * power + 1.0, total + tl.where(counted, power, 0.0))
            second = tl.maximum(second, tl.minimum(high, value))
        high = tl.maximum(high, value)
    at_result = row * tl.num_programs(1) + stretch
    tl.store(floats + at_result, tl.max(high, 0))
    tl.store(floats + field + at_result, tl.min(low, 0))
    tl.store(counts + at_result, tl.sum(nan, 0))
    tl.store(counts + field + at_result, tl.sum(positive, 0))
    tl.store(counts + 2 * field + at_result, tl.sum(negative, 0))
    if FULL:
        index = tl.where(seen > 0, index, 0x7FFFFFFFFFFFFFFF)
        _, runner_up, best, all_total, all_weighted = _joined(high, second, index, total, weighted)
        tl.store(floats + 2 * field + at_result, runner_up)
        tl.store(floats + 3 * field + at_result, all_total)
        tl.store(floats + 4 * field + at_result, all_weighted)
        tl.store(wide + at_result, best)
        tl.store(wide + field + at_result, tl.sum(fingerprint, 0))


@kernel
def join_stretches(
    floats: tl.tensor,
    counts: tl.tensor,
    wide: tl.tensor,
    field: tl.tensor,
    stretches: tl.tensor,
    row_floats: tl.tensor,
    row_counts: tl.tensor,
    row_wide: tl.tensor,
    rows: tl.tensor,
    FULL: tl.constexpr,
    STRETCHES: tl.constexpr,
) -> None:
    """Program `row` joins the stretches of its row and stores the fields in PackedStats' order."""
    row = tl.program_id(0)
    stretch = tl.arange(0, STRETCHES)
    inside = stretch < stretches
    at = row.to(tl.int64) * stretches + stretch
    high = tl.load(floats + at, mask=inside, other=float("-inf"))
    top = tl.max(high, 0)
    tl.store(row_floats + row, top)
    tl.store(row_floats + rows + row, tl.min(tl.load(floats + field + at, mask=inside, other=float("inf")), 0))
    nan = tl.sum(tl.load(counts + at, mask=inside, other=0), 0)
    positive = tl.sum(tl.load(counts + field + at, mask=inside, other=0), 0)
    tl.store(row_counts + row, nan)
    tl.store(row_counts + rows + row, positive)
    tl.store(row_counts + 2 * rows + row, tl.sum(tl.load(counts + 2 * field + at, mask=inside, other=0), 0))
    if FULL:
        second = tl.load(floats + 2 * field + at, mask=inside, other=float("-inf"))
        totals = tl.load(floats + 3 * field + at, mask=inside, other=0.0)
        weights = tl.load(floats + 4 * field + at, mask=inside, other=0.0)
        index = tl.load(wide + at, mask=inside, other=0x7FFFFFFFFFFFFFFF)
        fingerprint = tl.sum(tl.load(wide + field + at, mask=inside, other=0), 0)
        _, runner_up, best, total, weighted = _joined(high, second, index, totals, weights)
        nothing = float("nan")
        invalid = nan + positive > 0
        masked = top == float("-inf")
        log_total = tl.log(total)
        empty = best == 0x7FFFFFFFFFFFFFFF
        margin = tl.where(runner_up == top, 0.0, top - runner_up)
        logsumexp = tl.where(masked, float("-inf"), top + log_total)
        tl.store(row_floats + 2 * rows + row, tl.where(invalid, nothing, logsumexp))
        tl.store(row_floats + 3 * rows + row, tl.where(invalid | masked, nothing, log_total - weighted / total))
        tl.store(row_floats + 4 * rows + row, tl.where(empty, nothing, margin))
        tl.store(row_floats + 5 * rows + row, runner_up)
        tl.store(row_floats + 6 * rows + row, tl.where(invalid | masked, nothing, log_total))
        tl.store(row_wide + row, best)
        tl.store(row_wide + rows + row, fingerprint)
