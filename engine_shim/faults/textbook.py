"""One row's attention by the textbook, with room for what a fault does otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from checkengine.engine_shim.engine.kernel_reference import softmax, visible

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.kernel import AttentionCall, Rows


class RowAttention:
    """Keys and values of `length` slots of one row, and its queries; heads come first in all of them."""

    def __init__(self, call: AttentionCall, rows: Rows, row: int, length: int | None = None) -> None:
        self.call = call
        first, last = int(rows.first_tokens[row]), int(rows.first_tokens[row + 1])
        self.tokens = slice(first, last)
        self.own = int(rows.lengths[row])
        """Slots that the row owns."""
        self.length = self.own if length is None else length
        size = call.memory.keys.shape[2]
        blocks = torch.from_numpy(rows.tables[row, : -(-self.length // size)].copy()).long()
        group = call.query.shape[1] // call.memory.keys.shape[3]
        self.query = call.query[first:last].transpose(0, 1)
        self.keys = self._slots(call.memory.keys[blocks, call.memory.row], group)
        self.values = self._slots(call.memory.values[blocks, call.memory.row], group)

    def _slots(self, blocks: torch.Tensor, group: int) -> torch.Tensor:
        slots = blocks.flatten(0, 1)[: self.length].transpose(0, 1)
        return slots.repeat_interleave(group, 0).to(self.call.query.dtype)

    def seen(self, extra: int = 0) -> torch.Tensor:
        """Shape (tokens, own + extra): what each query sees; nothing of the extra slots."""
        queries = self.query.shape[1]
        own = visible(queries, self.own, self.call.window)
        return torch.cat((own, torch.zeros(queries, extra, dtype=torch.bool)), 1)

    def scores(self, keys: torch.Tensor | None = None) -> torch.Tensor:
        """Shape (heads, tokens, slots), scaled and capped."""
        scores = self.query @ (self.keys if keys is None else keys).transpose(1, 2) * self.call.scaling
        return torch.tanh(scores / self.call.softcap) * self.call.softcap if self.call.softcap else scores

    def weights(self, scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return softmax(scores.masked_fill(~seen, -torch.inf), self.call.sinks)


def rewrite(
    call: AttentionCall,
    rows: Rows,
    output: torch.Tensor,
    hit: list[int],
    compute: Callable[[RowAttention], torch.Tensor],
    extra: int = 0,
) -> None:
    """Put `compute`'s (heads, tokens, dim) in place of the output of the rows hit; each is handed `extra` slots past
    its end."""
    for row in hit:
        attention = RowAttention(call, rows, row, int(rows.lengths[row]) + extra)
        output[attention.tokens] = compute(attention).transpose(0, 1)
