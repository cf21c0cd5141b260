"""One row's call of one attention kernel, by itself: the smallest thing that can go wrong and be shown to.

An executor that can take a step apart into such calls, and run one alone, implements `OpExecutor` besides `Executor`.
The judge tests a call against float64 on the call's own inputs, localisation reads from it what was read, and the
minimiser makes it small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.replay.executor import ReplayStep

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Beside:
    """Another row of the same kernel call, on the same memory; fields as in OpCall."""

    query: torch.Tensor
    table: Ints
    length: int


@dataclass(frozen=True, slots=True)
class OpCall:
    """Inputs as the kernel met them, after the step wrote its own keys and values. All tensors are the call's own."""

    layer: int
    row: int
    """Of the record's rows, for people; the call holds this row only."""
    kernel: str
    query: torch.Tensor
    """Shape (tokens, heads, key_dim); the last token sits at position length - 1."""
    keys: torch.Tensor
    """Shape (blocks, block_size, KV heads, key_dim): memory of this layer, aligned with `blocks`."""
    values: torch.Tensor
    blocks: Ints
    """Sorted block numbers of the recorded engine."""
    table: Ints
    """The row's own blocks, in the order of positions."""
    length: int
    """Tokens that the row may read, the query's own included."""
    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    """Shape (heads,)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else the executor needs to run it again, as JSON (planted faults…)."""
    beside: tuple[Beside, ...] = ()
    """Rows that run in the same kernel call, in their order; mostly none: a right kernel treats rows apart."""
    place: int = 0
    """Of the call's own row among them all."""

    @property
    def block_size(self) -> int:
        return int(self.keys.shape[1])

    @property
    def owned(self) -> Ints:
        """Slots that the row may rightly read, in the order of positions: its window's, else all."""
        first = max(0, self.length - len(self.query) + 1 - self.window) if self.window else 0
        positions = np.arange(first, self.length)
        return (self.table[positions // self.block_size] * self.block_size + positions % self.block_size).astype(
            np.int32
        )

    @property
    def unowned(self) -> Ints:
        """All other slots of the call's memory, sorted."""
        size = self.block_size
        slots = (self.blocks[:, None] * size + np.arange(size)).astype(np.int32).ravel()
        return np.setdiff1d(slots, self.owned).astype(np.int32)

    def filled(self, slots: Ints, pattern: float, parts: Sequence[str] = ("key", "value")) -> OpCall:
        """A copy in which whole slots, or their keys or values only, hold a number."""
        rows = torch.from_numpy(np.searchsorted(self.blocks, slots // self.block_size).astype(np.int64))
        offsets = torch.from_numpy((slots % self.block_size).astype(np.int64))
        held = {"key": self.keys, "value": self.values}
        for part in parts:
            held[part] = held[part].clone()
            held[part][rows, offsets] = pattern
        return replace(self, keys=held["key"], values=held["value"])


@runtime_checkable
class OpExecutor(Protocol):
    def calls(
        self, step: ReplayStep, memory: Any, *, rows: Sequence[int], layers: Sequence[int] | None = None
    ) -> list[tuple[OpCall, torch.Tensor]]:
        """Run the step on `memory` with the recorded kernel and return these rows' calls, in the order in which they
        ran, each with the output that the step saw: (tokens, heads, value_dim)."""

    def attend(self, call: OpCall, *, kernel: str | None = None) -> torch.Tensor:
        """Run one call alone: (tokens, heads, value_dim), with the bits that the same kernel gives the row in its batch
        where the kernel treats rows apart (`row_independent`)."""

    row_independent: bool
    """Whether a row's output depends, bit for bit, on its own inputs only."""


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What a layer's attention should be given for the tokens of one row: from the hidden state that the layer gets
    under the recorded kernel, by the model's own projections and rotary embedding at the right positions, in the
    step's shape, so that right code gives these very bits."""

    layer: int
    query: torch.Tensor
    """Shape (tokens, heads, key_dim)."""
    keys: torch.Tensor
    """Shape (tokens, KV heads, key_dim), as they should stand in the row's own slots."""
    values: torch.Tensor


@runtime_checkable
class InputExecutor(Protocol):
    def inputs(self, step: ReplayStep, memory: Any, *, row: int) -> list[LayerInputs]:
        """Of every layer, in order. Runs the step on `memory`."""


def takes_calls(executor: object) -> TypeGuard[OpExecutor]:
    return isinstance(executor, OpExecutor)
