"""The production attention kernel: reads pages where they are.

It trusts tables and lengths blindly, as a GPU kernel does: what it is told to read past a sequence's end, it reads.
A row's result depends on its own slots and queries only, bit for bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit

from checkengine.engine_shim.engine.kernel import AttentionCall, Rows
from checkengine.engine_shim.engine.kernel_reference import gather_row, reference, softmax, visible

# No nnan and no ninf: a NaN in memory must come out as NaN.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
_NO_SINKS = np.empty(0, np.float32)


def paged(call: AttentionCall, rows: Rows) -> torch.Tensor:
    """Packed attention output of shape (tokens, heads, value_dim)."""
    if call.query.dtype != torch.float32 or call.memory.keys.dtype != torch.float32:
        return reference(call, rows)
    output = call.output()
    if len(rows.decode):
        _decode(call, rows, output)
    for row in rows.prefill:
        _prefill(call, rows, int(row), output)
    return output


def _prefill(call: AttentionCall, rows: Rows, row: int, output: torch.Tensor) -> None:
    first, last = int(rows.first_tokens[row]), int(rows.first_tokens[row + 1])
    keys, values = gather_row(call, rows, row)
    heads, key_heads = call.query.shape[1], keys.shape[1]
    # Query heads of one KV head become further queries, so that keys and values are not repeated in memory.
    grouped = call.query[first:last].transpose(0, 1).reshape(key_heads, -1, call.query.shape[2])
    scores = torch.bmm(grouped, keys.permute(1, 2, 0)).mul_(call.scaling).view(heads, last - first, -1)
    if call.softcap:
        scores = scores.div_(call.softcap).tanh_().mul_(call.softcap)
    scores.masked_fill_(~visible(last - first, scores.shape[-1], call.window), -torch.inf)
    weights = softmax(scores, call.sinks).view(key_heads, -1, scores.shape[-1])
    output[first:last] = torch.bmm(weights, values.transpose(0, 1)).view(heads, last - first, -1).transpose(0, 1)


def _decode(call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
    memory = call.memory
    kernel = decode_kernel(call.query.shape[1], memory.keys.shape[3], memory.keys.shape[4], memory.values.shape[4])
    kernel(
        call.query.contiguous().numpy(),
        memory.keys.numpy(),
        memory.values.numpy(),
        memory.row,
        rows.tables,
        rows.lengths,
        rows.first_tokens,
        rows.decode,
        np.float32(call.scaling),
        call.window or 0,
        np.float32(call.softcap or 0.0),
        _NO_SINKS if call.sinks is None else call.sinks.float().numpy(),
        output.numpy(),
    )


@cache
def decode_kernel(heads: int, key_heads: int, key_dim: int, value_dim: int) -> Any:
    """The kernel for one shape; the dimensions are constants, so that inner loops unroll."""
    group = heads // key_heads

    @njit(nogil=True, fastmath=_FASTMATH, error_model="numpy")
    def decode(
        query: Any,
        keys: Any,
        values: Any,
        layer: int,
        tables: Any,
        lengths: Any,
        first_tokens: Any,
        rows: Any,
        scaling: Any,
        window: int,
        softcap: Any,
        sinks: Any,
        output: Any,
    ) -> None:
        block_size = keys.shape[2]
        longest = 0
        for row in rows:
            longest = max(longest, lengths[row])
        scores = np.empty((heads, longest), np.float32)
        for row in rows:
            token, length = first_tokens[row], lengths[row]
            begin = max(0, length - window) if window > 0 else 0
            for position in range(begin, length):
                block = max(tables[row, position // block_size], 0)
                offset = position % block_size
                for head in range(key_heads):
                    for member in range(group):
                        total = np.float32(0.0)
                        for i in range(key_dim):
                            total += query[token, head * group + member, i] * keys[block, layer, offset, head, i]
                        scores[head * group + member, position] = total * scaling
            for head in range(heads):
                peak = np.float32(-np.inf)
                if softcap > 0:
                    for position in range(begin, length):
                        scores[head, position] = np.tanh(scores[head, position] / softcap) * softcap
                for position in range(begin, length):
                    peak = max(peak, scores[head, position])
                total = np.float32(0.0)
                if len(sinks):
                    peak = max(peak, sinks[head])
                    total = np.exp(sinks[head] - peak)
                for position in range(begin, length):
                    weight = np.exp(scores[head, position] - peak)
                    scores[head, position] = weight
                    total += weight
                for i in range(value_dim):
                    output[token, head, i] = 0.0
                inverse = np.float32(1.0) / total
                for position in range(begin, length):
                    scores[head, position] *= inverse
            for position in range(begin, length):
                block = max(tables[row, position // block_size], 0)
                offset = position % block_size
                for head in range(key_heads):
                    for member in range(group):
                        weight = scores[head * group + member, position]
                        for i in range(value_dim):
                            output[token, head * group + member, i] += weight * values[block, layer, offset, head, i]

    return decode
