"""A paged attention kernel that reads one slot past the sequence's end."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from checkengine.engine_shim.faults.fault import Fault, Ints


class OverRead(Fault):
    """Tells the decode kernel that a row of at least `minimum_length` tokens is one token longer than it is.

    The slot is the next one in memory: the tail of the row's last page or, where that page is full, the first slot
    of the page behind it, whoever owns it.
    """

    name: ClassVar[str] = "over_read"
    models: ClassVar[str] = (
        "off-by-one in a paged attention kernel's bound: vllm-project/vllm#53856 (V slots past seq_len), "
        "sgl-project/sglang#32477"
    )

    def __init__(self, minimum_length: int = 0, block_size: int = 32, layers: tuple[int, ...] = ()) -> None:
        """`layers` empty: every layer."""
        self.minimum_length, self.block_size, self.layers = minimum_length, block_size, tuple(layers)

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        hit = (query_lengths == 1) & (lengths >= self.minimum_length)
        if (self.layers and layer not in self.layers) or not hit.any():
            return tables, lengths
        return self._next_page(tables, lengths, hit), np.where(hit, lengths + 1, lengths).astype(np.int32)

    def _next_page(self, tables: Ints, lengths: Ints, hit: np.ndarray) -> Ints:
        wide = np.full((len(tables), tables.shape[1] + 1), -1, np.int32)
        wide[:, :-1] = tables
        for row in np.flatnonzero(hit & (lengths % self.block_size == 0)):
            pages = lengths[row] // self.block_size
            wide[row, pages] = wide[row, pages - 1] + 1
        return wide
