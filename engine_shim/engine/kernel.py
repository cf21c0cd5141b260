"""What an attention kernel is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.engine.kv_memory import LayerMemory

Ints = NDArray[np.int32]


@dataclass(slots=True)
class Rows:
    """What the kernel reads for each row, in memory rows (not the engine's block numbers)."""

    tables: Ints
    """Shape (rows, width): memory row of each block; entries past the row's blocks are -1."""
    lengths: Ints
    """Shape (rows,): slots to read, this step's own included. The last query sits at position lengths - 1."""
    query_lengths: Ints
    first_tokens: Ints
    """Shape (rows + 1,): where each row's queries begin in the packed arrays."""
    decode: Ints
    """Rows with one query."""
    prefill: Ints
    addresses: tuple[int, int, int, int]
    """Of tables, lengths, first_tokens and decode."""

    @classmethod
    def of(cls, tables: Ints, lengths: Ints, query_lengths: Ints, first_tokens: Ints) -> Rows:
        single = query_lengths == 1
        tables = np.ascontiguousarray(tables, np.int32)
        lengths = np.ascontiguousarray(lengths, np.int32)
        decode = np.flatnonzero(single).astype(np.int32)
        prefill = np.flatnonzero(~single).astype(np.int32)
        addresses = (tables.ctypes.data, lengths.ctypes.data, first_tokens.ctypes.data, decode.ctypes.data)
        return cls(tables, lengths, query_lengths, first_tokens, decode, prefill, addresses)


@dataclass(slots=True)
class AttentionCall:
    """One layer's attention. Heads of `query` are a multiple of the memory's KV heads."""

    query: torch.Tensor
    """Shape (tokens, heads, key_dim)."""
    memory: LayerMemory
    scaling: float
    window: int | None
    """A query at position p sees positions above p - window."""
    softcap: float | None
    sinks: torch.Tensor | None
    """Shape (heads,): a logit per head that takes part in the softmax and carries no value."""

    def output(self) -> torch.Tensor:
        """Uninitialised, shape (tokens, heads, value_dim)."""
        tokens, heads, _ = self.query.shape
        return torch.empty((tokens, heads, self.memory.values.shape[4]), dtype=self.query.dtype)


AttentionKernel = Callable[[AttentionCall, Rows], torch.Tensor]
