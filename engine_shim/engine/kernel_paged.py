"""The production attention kernel: reads pages where they are.

It trusts tables and lengths blindly, as a GPU kernel does: what it is told to read past a sequence's end, it reads.
A row's result depends on its own slots and queries only, bit for bit.
"""

from __future__ import annotations

import numpy as np
import torch

from checkengine.engine_shim.engine.kernel import AttentionCall, Rows
from checkengine.engine_shim.engine.kernel_decode import (
    LAYER,
    OUT,
    QUERY,
    QUERY_SHAPE,
    SINKS,
    WORDS,
    decode_rows,
)
from checkengine.engine_shim.engine.kernel_reference import gather_row, reference, softmax, visible
from checkengine.engine_shim.engine.openmp import run_parallel

_NO_SINKS = torch.empty(0)


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
    query = call.query.contiguous()
    sinks = _NO_SINKS if call.sinks is None else call.sinks.float().contiguous()
    options = torch.tensor((call.scaling, call.softcap or 0.0), dtype=torch.float32)
    job = np.zeros(WORDS, np.int64)
    job[LAYER : SINKS + 1] = (
        memory.row,
        *rows.tables.shape,
        len(rows.decode),
        call.window or 0,
        len(sinks),
    )
    job[QUERY : OUT + 1] = (
        query.data_ptr(),
        memory.keys.data_ptr(),
        memory.values.data_ptr(),
        *rows.addresses,
        options.data_ptr(),
        sinks.data_ptr(),
        output.data_ptr(),
    )
    job[QUERY_SHAPE:WORDS] = (*query.shape, *memory.keys.shape, *memory.values.shape)
    run_parallel(decode_rows(), job.ctypes.data, min(torch.get_num_threads(), len(rows.decode)))


def warm_up() -> None:
    """Compiles what would else compile in the first step."""
    decode_rows()
