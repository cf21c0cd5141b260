"""Decode attention over pages, compiled: one query a row.

The dimensions are read from the arrays, so that one compiled function, kept on disk, serves every model.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray

from checkengine.engine_shim.engine.compiling import c_address, compiled
from checkengine.engine_shim.engine.openmp import as_pointer, take_item


@compiled
def exponentials(scores: Any, peak: Any, scratch: Any) -> Any:
    """exp(scores - peak) in place and their sum; scores at most `peak`. Cephes' polynomial, relative error 2e-7."""
    for i in range(scores.shape[0]):
        x = scores[i] - peak
        x = np.float32(-87.0) if x < np.float32(-87.0) else x
        n = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
        r = x - n * np.float32(0.693359375)
        r = r - n * np.float32(-2.12194440e-4)
        p = np.float32(1.9875691500e-4)
        p = p * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        scores[i] = p * r * r + r + np.float32(1.0)
        # A power of two is its exponent's bits.
        scratch[i] = (np.int32(n) + np.int32(127)) << np.int32(23)
    powers = scratch.view(np.float32)
    total = np.float32(0.0)
    for i in range(scores.shape[0]):
        scores[i] *= powers[i]
        total += scores[i]
    return total


@compiled
def softmax_in_place(scores: Any, softcap: Any, sinks: Any, head: int, scratch: Any) -> None:
    """Scores of one head to weights; `sinks` is empty or has a logit per head."""
    if softcap > 0:
        for i in range(scores.shape[0]):
            scores[i] = np.tanh(scores[i] / softcap) * softcap
    peak = scores[0]
    for i in range(scores.shape[0]):
        peak = max(peak, scores[i])
    extra = np.float32(0.0)
    if sinks.shape[0]:
        peak = max(peak, sinks[head])
        extra = np.exp(sinks[head] - peak)
    inverse = np.float32(1.0) / (exponentials(scores, peak, scratch) + extra)
    for i in range(scores.shape[0]):
        scores[i] *= inverse


@compiled
def decode_row(
    query: Any, keys: Any, values: Any, layer: int, table: Any, span: Any, options: Any, sinks: Any, output: Any
) -> None:
    """One row: query (heads, key_dim), keys (blocks, layers, block_size, KV heads, key_dim), values likewise, table
    (width,), span (first, last position + 1), options (scaling, softcap), output (heads, value_dim)."""
    block_size, key_heads, key_dim, value_dim = keys.shape[2], keys.shape[3], keys.shape[4], values.shape[4]
    heads, begin, length = query.shape[0], span[0], span[1]
    group = heads // key_heads
    scores = np.empty((heads, length), np.float32)
    scratch = np.empty(length, np.int32)
    scaled = np.empty((heads, key_dim), np.float32)
    total = np.zeros((heads, value_dim), np.float32)
    for head in range(heads):
        for i in range(key_dim):
            scaled[head, i] = query[head, i] * options[0]
    for page in range(begin // block_size, (length + block_size - 1) // block_size):
        block = max(table[page], 0)
        for offset in range(max(begin - page * block_size, 0), min(length - page * block_size, block_size)):
            for key_head in range(key_heads):
                for member in range(group):
                    score = np.float32(0.0)
                    for i in range(key_dim):
                        score += scaled[key_head * group + member, i] * keys[block, layer, offset, key_head, i]
                    scores[key_head * group + member, page * block_size + offset] = score
    for head in range(heads):
        softmax_in_place(scores[head, begin:length], options[1], sinks, head, scratch[begin:length])
    for page in range(begin // block_size, (length + block_size - 1) // block_size):
        block = max(table[page], 0)
        for offset in range(max(begin - page * block_size, 0), min(length - page * block_size, block_size)):
            for key_head in range(key_heads):
                for member in range(group):
                    weight = scores[key_head * group + member, page * block_size + offset]
                    for i in range(value_dim):
                        total[key_head * group + member, i] += weight * values[block, layer, offset, key_head, i]
    output[:] = total


COUNTER, LAYER, ROWS, WIDTH, DECODE, WINDOW, SINKS = range(7)
"""Words of a job that are numbers: rows taken so far, the layer's row in memory, rows and width of the tables, rows to
compute, window (0 for none), number of sinks."""
QUERY, KEYS, VALUES, TABLES, LENGTHS, FIRST, WHICH, OPTIONS, SINK, OUT = range(7, 17)
"""Words that are addresses."""
QUERY_SHAPE, KEYS_SHAPE, VALUES_SHAPE, WORDS = 17, 20, 25, 30
"""Where the shapes of query, keys and values begin, and the number of words."""


def _decode_rows(data: Any) -> None:
    """Takes rows until none is left; runs on several threads at once. `data` points to the words of a job."""
    job = carray(data, (WORDS,), np.int64)
    tokens, heads, key_dim = job[QUERY_SHAPE], job[QUERY_SHAPE + 1], job[QUERY_SHAPE + 2]
    blocks, layers, block_size = job[KEYS_SHAPE], job[KEYS_SHAPE + 1], job[KEYS_SHAPE + 2]
    key_heads, value_dim = job[KEYS_SHAPE + 3], job[VALUES_SHAPE + 4]
    query = carray(as_pointer(job[QUERY]), (tokens, heads, key_dim), np.float32)
    keys = carray(as_pointer(job[KEYS]), (blocks, layers, block_size, key_heads, key_dim), np.float32)
    values = carray(as_pointer(job[VALUES]), (blocks, layers, block_size, key_heads, value_dim), np.float32)
    output = carray(as_pointer(job[OUT]), (tokens, heads, value_dim), np.float32)
    tables = carray(as_pointer(job[TABLES]), (job[ROWS], job[WIDTH]), np.int32)
    lengths = carray(as_pointer(job[LENGTHS]), (job[ROWS],), np.int32)
    first_tokens = carray(as_pointer(job[FIRST]), (job[ROWS],), np.int32)
    which = carray(as_pointer(job[WHICH]), (job[DECODE],), np.int32)
    options = carray(as_pointer(job[OPTIONS]), (2,), np.float32)
    sinks = carray(as_pointer(job[SINK]), (job[SINKS],), np.float32)
    span = np.empty(2, np.int64)
    address = job.ctypes.data
    while True:
        item = take_item(address)
        if item >= which.shape[0]:
            break
        row = which[item]
        span[1] = lengths[row]
        span[0] = max(0, span[1] - job[WINDOW]) if job[WINDOW] > 0 else 0
        token = first_tokens[row]
        decode_row(query[token], keys, values, job[LAYER], tables[row], span, options, sinks, output[token])


@cache
def decode_rows() -> int:
    """Address of the compiled function; compiles on the first call, seconds on a machine's first."""
    return c_address(_decode_rows)
