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
    """Inputs as the kernel met them, after the step wrote its own keys and values. All tensors are
    the call's own, or shared with calls that ran beside it: nobody writes to them."""

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
        return self.slots_at(np.arange(self.first_seen, self.length))

    @property
    def behind(self) -> Ints:
        """Slots of the row's own that lie behind the window of its first query, in the order of positions. A kernel
        that lets a finite number there in has its window's edge wrong; NaN gets through any mask that multiplies by
        zero, and there only the row itself can have put it."""
        return self.slots_at(np.arange(self.first_seen))

    @property
    def unowned(self) -> Ints:
        """Slots of the call's memory that are not the row's own, sorted: its last page's tail among them."""
        size = self.block_size
        slots = (self.blocks[:, None] * size + np.arange(size)).astype(np.int32).ravel()
        return np.setdiff1d(slots, self.slots_at(np.arange(self.length))).astype(np.int32)

    @property
    def hidden(self) -> Ints:
        """All slots that no query of the call may see, sorted: `unowned` and `behind`."""
        return np.union1d(self.unowned, self.behind).astype(np.int32)

    @property
    def first_seen(self) -> int:
        """Position of the first slot that any query may see."""
        return max(0, self.length - len(self.query) + 1 - self.window) if self.window else 0

    def slots_at(self, positions: NDArray[np.int64]) -> Ints:
        size = self.block_size
        slots: Ints = (self.table[positions // size] * size + positions % size).astype(np.int32)
        return slots

    def filled(self, slots: Ints, pattern: float, parts: Sequence[str] = ("key", "value")) -> OpCall:
        """A copy in which whole slots, or their keys or values only, hold a number."""
        rows = torch.from_numpy(np.searchsorted(self.blocks, slots // self.block_size).astype(np.int64))
        offsets = torch.from_numpy((slots % self.block_size).astype(np.int64))
        held = {"key": self.keys, "value": self.values}
        for part in parts:
            held[part] = held[part].clone()
            held[part][rows, offsets] = pattern
        return replace(self, keys=held["key"], values=held["value"])


def in_company(calls: Sequence[OpCall], own: int) -> OpCall:
    """One layer's calls of all rows of a step, in their order, as one: that of row `own` with the others beside it."""
    beside = tuple(Beside(call.query, call.table, call.length) for index, call in enumerate(calls) if index != own)
    return replace(calls[own], beside=beside, place=own)


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


@runtime_checkable
class OutputExecutor(Protocol):
    def output(self, step: ReplayStep, memory: Any, *, op: str, layer: int, row: int) -> torch.Tensor:
        """Run the step on `memory` with the recorded kernel and return one row's output of one op, as the hashes name
        it: (tokens, …), whose OpTree has the op's hash for a root."""


def takes_calls(executor: object) -> TypeGuard[OpExecutor]:
    return isinstance(executor, OpExecutor)
