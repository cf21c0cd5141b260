"""How planted faults act on the KV writes and the attention of one layer, in a step and in a call run alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.engine.kernel import AttentionCall, AttentionKernel, Rows
from checkengine.engine_shim.engine.kv_memory import KVMemory, Places
from checkengine.engine_shim.faults.fault import Fault

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Told:
    """What the kernel would be told without a fault: fields as in PackedBatch."""

    tables: Ints
    lengths: Ints
    query_lengths: Ints
    first_tokens: Ints
    block_size: int

    def rows(self, faults: Sequence[Fault], layer: int, nearest: Callable[[Ints], Ints]) -> Rows | None:
        """What faults have the kernel read; None where they leave it alone. `nearest` finds blocks in memory."""
        tables, lengths = self.tables, self.lengths
        for fault in faults:
            tables, lengths = fault.reads(layer, tables, lengths, self.query_lengths)
        if tables is self.tables and lengths is self.lengths:
            return None
        lengths = np.clip(lengths, 1, tables.shape[1] * self.block_size).astype(np.int32)
        return Rows.of(nearest(tables), lengths, self.query_lengths, self.first_tokens)


def attend(
    faults: Sequence[Fault], kernel: AttentionKernel, layer: int, call: AttentionCall, rows: Rows, told: Told
) -> torch.Tensor:
    """Packed attention output of shape (tokens, heads, value_dim). `rows`: as `Told.rows` left it."""
    for fault in faults:
        call = fault.call(layer, call)
    output = kernel(call, rows)
    for fault in faults:
        fault.attended(layer, call, rows, output)
        fault.attention_output(layer, output, told.lengths, told.query_lengths)
    return output


def write(
    faults: Sequence[Fault],
    memory: KVMemory,
    layer: int,
    slots: Ints,
    states: tuple[torch.Tensor, torch.Tensor],
    told: Told,
) -> None:
    """The cache writer under faults; `states` are keys and values, as KVMemory.write takes them."""
    keys, values = states
    for fault in faults:
        slots = fault.writes(layer, slots, told.lengths, told.query_lengths)
        keys, values = fault.written(layer, keys, values, told.lengths, told.query_lengths)
    kept = slots >= 0
    if not kept.all():
        written = torch.from_numpy(kept)
        slots, keys, values = slots[kept], keys[written], values[written]
    rows = memory.nearest((slots // memory.block_size).astype(np.int32))
    offsets = (slots % memory.block_size).astype(np.int64)
    memory.write(layer, Places.of(rows.astype(np.int64), offsets), keys, values)
