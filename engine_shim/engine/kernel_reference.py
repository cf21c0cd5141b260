"""The attention kernel to trust: one row at a time, the textbook's formula, in the dtype of the query."""

from __future__ import annotations

import numpy as np
import torch

from checkengine.engine_shim.engine.kernel import AttentionCall, Rows


def reference(call: AttentionCall, rows: Rows) -> torch.Tensor:
    """Packed attention output of shape (tokens, heads, value_dim)."""
    output = call.output()
    for row in range(len(rows.lengths)):
        attend_row(call, rows, row, output)
    return output


def attend_row(call: AttentionCall, rows: Rows, row: int, output: torch.Tensor) -> None:
    """Attention of one row's queries, written into the packed output."""
    first, last = int(rows.first_tokens[row]), int(rows.first_tokens[row + 1])
    keys, values = gather_row(call, rows, row)
    heads, key_heads = call.query.shape[1], keys.shape[1]
    keys = keys.transpose(0, 1).repeat_interleave(heads // key_heads, 0).to(call.query.dtype)
    values = values.transpose(0, 1).repeat_interleave(heads // key_heads, 0).to(call.query.dtype)
    scores = call.query[first:last].transpose(0, 1) @ keys.transpose(1, 2) * call.scaling
    if call.softcap:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    scores = scores.masked_fill(~visible(last - first, scores.shape[-1], call.window), -torch.inf)
    weights = softmax(scores, call.sinks)
    # Weight zero times a slot that may not be read is still a read, as 0 * inf shows: such slots are not gathered.
    output[first:last] = (weights @ values).transpose(0, 1)


def gather_row(call: AttentionCall, rows: Rows, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a row's slots in order: (length, KV heads, dim)."""
    memory = call.memory
    block_size = memory.keys.shape[2]
    length = int(rows.lengths[row])
    blocks = torch.from_numpy(rows.tables[row, : -(-length // block_size)].astype(np.int64))
    keys = memory.keys[blocks, memory.row].flatten(0, 1)[:length]
    values = memory.values[blocks, memory.row].flatten(0, 1)[:length]
    return keys, values


def visible(queries: int, length: int, window: int | None) -> torch.Tensor:
    """Shape (queries, length), True where a query sees a position; the last query sits at the last position."""
    position = torch.arange(length - queries, length).unsqueeze(1)
    key = torch.arange(length).unsqueeze(0)
    seen = key <= position
    return seen & (key > position - window) if window else seen


def softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Weights over positions of scores (heads, queries, length)."""
    if sinks is None:
        return torch.softmax(scores, -1)
    sink = sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, scores.shape[1], 1)
    return torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1]
