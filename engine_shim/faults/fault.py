"""Where a planted fault may act: inside the engine, never on the output text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.replay.judge.fault_class import FaultClass

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.batch import PackedBatch
    from checkengine.engine_shim.engine.kernel import AttentionCall, Rows
    from checkengine.engine_shim.engine.kv_memory import KVMemory
    from checkengine.engine_shim.engine.sampler import SamplingRow

Ints = NDArray[np.int32]


class Fault:
    """Does nothing; a fault overrides the seams it acts on. Conditions depend on the step's numbers only, so that
    a replay meets them again. A fault's parameters are JSON, kept under their names as attributes."""

    name: ClassVar[str]
    models: ClassVar[str]
    """The public bug that it models, with its source."""
    fault_class: ClassVar[FaultClass]
    """What a verdict on it should say."""
    in_code: ClassVar[bool] = True
    """False: it strikes the memory of a live engine, and no replay meets it again."""

    def positions(self, positions: Ints, starts: Ints, query_lengths: Ints) -> Ints:
        """Positions that rotary embedding is told of the packed tokens, shape (tokens,)."""
        return positions

    def writes(self, layer: int, slots: Ints, lengths: Ints, query_lengths: Ints) -> Ints:
        """Slots that the cache writer is told, shape (tokens,), under recorded block numbers; -1 where it writes
        nothing."""
        return slots

    def written(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, lengths: Ints, query_lengths: Ints
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the cache writer is given: keys (tokens, heads, key_dim) and values (tokens, heads, value_dim)."""
        return keys, values

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        """What the attention kernel of `layer` is told to read: block tables (rows, max blocks; recorded block
        numbers, padded with -1) and lengths (rows,) in tokens including this step's."""
        return tables, lengths

    def call(self, layer: int, call: AttentionCall) -> AttentionCall:
        """What else the kernel is told: scale, window, soft cap, sinks."""
        return call

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        """Change the kernel's packed output (tokens, heads, dim) in place, with all that the kernel was told at hand;
        `rows` is as `reads` left it."""

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        """Change the packed attention output of shape (tokens, heads, dim) in place."""

    def logits(self, logits: torch.Tensor, lengths: Ints) -> None:
        """Change raw logits of shape (sampling rows, vocabulary) in place; `lengths` of the sampling rows."""

    def sampling(self, rows: Sequence[SamplingRow]) -> Sequence[SamplingRow]:
        """What the sampler is told of each sampling row."""
        return rows

    def sampled(self, tokens: Ints, vocabulary: int) -> Ints:
        """The sampler's tokens, shape (sampling rows,)."""
        return tokens

    def masks_stop(self, output_tokens: Sequence[int]) -> bool:
        """True where the engine masks the stop tokens out of sampling for the token that follows these."""
        return False

    def loses(self, logits: torch.Tensor, position: int) -> Sequence[int]:
        """Tokens that the sampler loses when it draws the token at `position` of a sequence from these raw logits of
        shape (vocabulary,)."""
        return ()

    def strikes(self, batch: PackedBatch, memory: KVMemory) -> None:
        """Change a live engine's memory just before it computes `batch`. Only where not `in_code`."""


def last_tokens(query_lengths: Ints) -> NDArray[np.int64]:
    """Shape (rows,): packed index of each row's last token."""
    last: NDArray[np.int64] = np.cumsum(query_lengths, dtype=np.int64) - 1
    return last


def of_layer(layer: int, layers: Sequence[int]) -> bool:
    """Whether a fault with these layers acts on this one; no layers are all."""
    return not layers or layer in layers
