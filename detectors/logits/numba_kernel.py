"""The compiled loops behind the numba backend. Each inner loop is one that LLVM turns into vector code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from checkengine.detectors.compiled import compiled_sums as compiled

BLOCK = 2048
"""Columns at a time: 8 KB of logits and 16 KB of keys stay in the first-level cache."""

_INFINITY = np.int32(0x7F800000)
"""+inf as an ordered integer; a larger one is a positive NaN."""
_MINUS_INFINITY = np.int32(-0x7F800001)
"""-inf as an ordered integer; a smaller one is a negative NaN."""
_LOWEST = np.int32(-0x80000000)
_HIGHEST = np.int32(0x7FFFFFFF)
_OFFSET = np.uint64(0x9E3779B97F4A7C15)
_FLOOR = np.float32(-87.0)
_NEGLIGIBLE = np.float32(-40.0)


def _in_llvm(function: Callable[..., Any]) -> Any:
    return intrinsic(function)


@_in_llvm
def _ordered(typing_context: Any, bits: Any) -> Any:
    """float32 bits as an int32 that orders like the float; its own inverse. Written in LLVM's words
    because numba would widen 32-bit integers to 64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        word = ir.IntType(32)
        sign = builder.ashr(value, ir.Constant(word, 31))
        return builder.xor(value, builder.and_(sign, ir.Constant(word, 0x7FFFFFFF)))

    return types.int32(types.int32), generate


@_in_llvm
def _as_float(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


_EXP = (
    1.0000001192092896,
    0.9999997019767761,
    0.49998894333839417,
    0.16667574644088745,
    0.04191538318991661,
    0.008297654800117016,
)
"""Minimax polynomial of e^r for |r| <= ln 2 / 2; relative error 7.5e-8."""


@_in_llvm
def _exp(typing_context: Any, value: Any) -> Any:
    """e^d for -87 <= d <= 0 without a branch: 2^n by adding to the exponent bits, e^r by a polynomial."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (d,) = arguments
        single, word = ir.FloatType(), ir.IntType(32)

        def number(x: float) -> Any:
            return ir.Constant(single, float(np.float32(x)))

        scaled = builder.fsub(builder.fmul(d, number(1 / math.log(2))), number(0.5))
        whole = builder.fptosi(scaled, word)
        r = builder.fsub(d, builder.fmul(builder.sitofp(whole, single), number(math.log(2))))
        power = number(_EXP[-1])
        for coefficient in reversed(_EXP[:-1]):
            power = builder.fadd(builder.fmul(power, r), number(coefficient))
        bits = builder.add(builder.bitcast(power, word), builder.shl(whole, ir.Constant(word, 23)))
        return builder.bitcast(bits, single)

    return types.float32(types.float32), generate


@compiled
def _extrema(bits: Any) -> Any:
    """Largest and smallest ordered integer; NaN shows as one beyond the infinities.

    Where both signs occur, the largest signed number is the maximum's bits and the largest unsigned
    one the minimum's (negative floats order backwards): two operations an element.
    """
    signed, unsigned = _LOWEST, np.uint32(0)
    unsigned_bits = bits.view(np.uint32)
    for i in range(len(bits)):
        signed = bits[i] if bits[i] > signed else signed
        unsigned = unsigned_bits[i] if unsigned_bits[i] > unsigned else unsigned
    if signed < 0 or unsigned <= np.uint32(0x7FFFFFFF):
        return _extrema_of_one_sign(bits)
    return signed, _ordered(np.int32(unsigned))


@compiled
def _extrema_of_one_sign(bits: Any) -> Any:
    high, low = _LOWEST, _HIGHEST
    for i in range(len(bits)):
        value = _ordered(bits[i])
        high = value if value > high else high
        low = value if value < low else low
    return high, low


@compiled
def _extrema_without_nan(bits: Any) -> Any:
    high, low = _LOWEST, _HIGHEST
    for i in range(len(bits)):
        value = _ordered(bits[i])
        if _MINUS_INFINITY <= value <= _INFINITY:
            high = value if value > high else high
            low = value if value < low else low
    return high, low


@compiled
def _count(bits: Any, counts: Any, row: int) -> None:
    nan, positive, negative = 0, 0, 0
    for i in range(len(bits)):
        value = _ordered(bits[i])
        positive += value == _INFINITY
        negative += value == _MINUS_INFINITY
        nan += (value > _INFINITY) | (value < _MINUS_INFINITY)
    counts[0, row] += nan
    counts[1, row] += positive
    counts[2, row] += negative


@compiled
def _fingerprint(own: Any, keys: Any) -> Any:
    """Of elements by their own bits, none of them NaN."""
    total = np.uint64(0)
    for i in range(len(keys)):
        product = (np.uint64(np.uint32(own[i])) + _OFFSET) * keys[i]
        total += product ^ (product >> np.uint64(32))
    return total


@compiled
def _fingerprint_with_nan(own: Any, keys: Any, form: Any) -> Any:
    """`form`: bits of +inf, mask of all bits but the sign, bits of the canonical NaN."""
    infinity, magnitude, canonical = form[0], form[1], form[2]
    total = np.uint64(0)
    for i in range(len(keys)):
        bits = np.uint64(np.uint32(own[i]))
        if (bits & magnitude) > infinity:
            bits = canonical
        product = (bits + _OFFSET) * keys[i]
        total += product ^ (product >> np.uint64(32))
    return total


@compiled
def _exponential_sums(values: Any, maximum: Any) -> Any:
    """Sum of e^(x - maximum), and of e^(x - maximum) (x - maximum), over one block."""
    total, weighted = np.float32(0), np.float32(0)
    for i in range(len(values)):
        below = values[i] - maximum
        below = below if below > _FLOOR else _FLOOR
        power = _exp(below)
        total += power
        weighted += power * below
    return total, weighted


@compiled
def screen_rows(bits: Any, stride: int, columns: int, floats: Any, nonfinite: Any, invalid: Any) -> None:
    """Fills nonfinite, invalid and floats[0] maximum, floats[1] minimum."""
    for row in range(len(nonfinite)):
        row_bits = bits[row * stride : row * stride + columns]
        high, low = _extrema(row_bits)
        nonfinite[row] = high >= _INFINITY or low <= _MINUS_INFINITY
        invalid[row] = high >= _INFINITY or low < _MINUS_INFINITY
        if high > _INFINITY or low < _MINUS_INFINITY:
            high, low = _extrema_without_nan(row_bits)
        floats[0, row], floats[1, row] = _limits(high, low)


@compiled
def _limits(high: Any, low: Any) -> Any:
    """As floats; a row of NaN only has maximum -inf and minimum +inf. Adding zero makes -0.0 +0.0."""
    maximum = np.float32(-np.inf) if high == _LOWEST else _as_float(_ordered(high)) + np.float32(0)
    minimum = np.float32(np.inf) if low == _HIGHEST else _as_float(_ordered(low)) + np.float32(0)
    return maximum, minimum


@compiled
def full_rows(
    values: Any,
    bits: Any,
    stride: int,
    own: Any,
    own_stride: int,
    form: Any,
    keys: Any,
    floats: Any,
    counts: Any,
    argmax: Any,
    fingerprint: Any,
    nonfinite: Any,
    invalid: Any,
) -> None:
    """Fills floats (as numba_backend.FLOATS), counts (nan, +inf, -inf) and the rest."""
    columns = len(keys)
    highs = np.empty((columns + BLOCK - 1) // BLOCK, np.int32)
    for row in range(len(argmax)):
        row_values = values[row * stride : row * stride + columns]
        row_bits = bits[row * stride : row * stride + columns]
        row_own = own[row * own_stride : row * own_stride + columns]
        high, low, finite, fingerprint[row] = _first_reading(row_bits, row_own, form, keys, highs)
        counts[:, row] = 0
        nonfinite[row] = not finite
        if not finite:
            _count(row_bits, counts, row)
        maximum, minimum = _limits(high, low)
        floats[0, row], floats[1, row] = maximum, minimum
        invalid[row] = counts[0, row] + counts[1, row] > 0
        if counts[0, row] == columns:
            argmax[row], floats[4, row], floats[5, row] = -1, np.nan, -np.inf
        else:
            argmax[row], floats[4, row], floats[5, row] = _top(row_values, row_bits, highs, maximum)
        if invalid[row]:
            floats[2, row] = floats[3, row] = floats[6, row] = np.nan
        else:
            floats[2, row], floats[3, row], floats[6, row] = _second_reading(row_values, highs, maximum)


@compiled
def _first_reading(bits: Any, own: Any, form: Any, keys: Any, highs: Any) -> Any:
    """Extrema, whether all is finite, and the fingerprint; leaves each block's maximum in `highs`."""
    columns, finite = len(keys), True
    high, low, fingerprint = _LOWEST, _HIGHEST, np.uint64(0)
    for block in range(len(highs)):
        first, end = block * BLOCK, min(block * BLOCK + BLOCK, columns)
        block_high, block_low = _extrema(bits[first:end])
        finite &= block_high < _INFINITY and block_low > _MINUS_INFINITY
        if block_high > _INFINITY or block_low < _MINUS_INFINITY:
            block_high, block_low = _extrema_without_nan(bits[first:end])
            fingerprint += _fingerprint_with_nan(own[first:end], keys[first:end], form)
        else:
            fingerprint += _fingerprint(own[first:end], keys[first:end])
        highs[block] = block_high
        high, low = max(high, block_high), min(low, block_low)
    return high, low, finite, fingerprint


@compiled
def _top(values: Any, bits: Any, highs: Any, maximum: Any) -> Any:
    """Lowest index of the maximum, the margin to the second largest and the second largest."""
    best = 0
    while highs[best] == _LOWEST or _as_float(_ordered(highs[best])) != maximum:
        best += 1
    at = best * BLOCK
    while values[at] != maximum:
        at += 1
    second = max(
        _extrema_without_nan(bits[best * BLOCK : at])[0],
        _extrema_without_nan(bits[at + 1 : best * BLOCK + BLOCK])[0],
    )
    for block in range(len(highs)):
        if block != best:
            second = max(second, highs[block])
    runner_up = np.float32(-np.inf) if second == _LOWEST else _as_float(_ordered(second)) + np.float32(0)
    return at, np.float32(0) if runner_up == maximum else maximum - runner_up, runner_up


@compiled
def _second_reading(values: Any, highs: Any, maximum: Any) -> Any:
    """logsumexp, entropy and logsumexp minus maximum, in nats, of a row without NaN and +inf."""
    if maximum == -np.inf:
        return np.float32(-np.inf), np.float32(np.nan), np.float32(np.nan)
    total, weighted = 0.0, 0.0
    for block in range(len(highs)):
        if _as_float(_ordered(highs[block])) - maximum > _NEGLIGIBLE:
            block_total, block_weighted = _exponential_sums(values[block * BLOCK : block * BLOCK + BLOCK], maximum)
            total += block_total
            weighted += block_weighted
    log_total = math.log(total)
    return np.float32(maximum + log_total), np.float32(log_total - weighted / total), np.float32(log_total)
