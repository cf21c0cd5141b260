"""One row's attention, computed again the way a fault has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from checkengine.engine_shim.engine.kernel import AttentionCall, Rows
from checkengine.engine_shim.engine.kernel_reference import softmax


def acts_in(layer: int, every: int, phase: int) -> bool:
    """True in every `every`th layer, from layer `phase` on."""
    return layer % every == phase % every


def decode_rows(rows: Rows, minimum_length: int = 0) -> Iterator[tuple[int, int, int]]:
    """(row, its packed token, slots that it reads) of every decode row of at least `minimum_length` slots."""
    for row in rows.decode.tolist():
        length = int(rows.lengths[row])
        if length >= minimum_length:
            yield row, int(rows.first_tokens[row]), length


def page_slots(states: torch.Tensor, pages: Sequence[int], memory_row: int) -> torch.Tensor:
    """All slots of pages in order, (slots, KV heads, dim), of states (blocks, layers, block_size, KV heads, dim)."""
    return states[torch.as_tensor(pages, dtype=torch.long), memory_row].flatten(0, 1)


def row_slots(call: AttentionCall, rows: Rows, row: int, *, whole_pages: bool = False) -> tuple[torch.Tensor, ...]:
    """Keys and values of a row, (slots, KV heads, dim); with `whole_pages` its last page to the page's end."""
    block_size = call.memory.keys.shape[2]
    length = int(rows.lengths[row])
    pages = rows.tables[row, : -(-length // block_size)].tolist()
    end = len(pages) * block_size if whole_pages else length
    states = (call.memory.keys, call.memory.values)
    return tuple(page_slots(state, pages, call.memory.row)[:end] for state in states)


def weights_of(call: AttentionCall, query: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Softmax weights (heads, queries, slots) of queries (queries, heads, dim) on keys (slots, KV heads, dim), with a
    bias of shape (queries, slots) or one that broadcasts to it."""
    heads = query.shape[1]
    repeated = keys.transpose(0, 1).repeat_interleave(heads // keys.shape[1], 0).to(query.dtype)
    scores = query.transpose(0, 1) @ repeated.transpose(1, 2) * call.scaling
    if call.softcap:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    return softmax(scores + bias, call.sinks)


def weighted(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Output (queries, heads, value_dim) of weights (heads, queries, slots) on values (slots, KV heads, value_dim)."""
    repeated = values.transpose(0, 1).repeat_interleave(weights.shape[0] // values.shape[1], 0).to(weights.dtype)
    return (weights @ repeated).transpose(0, 1)
