"""Attention calls of the embedded engine, taken out of a step and run alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.engine import planted
from checkengine.engine_shim.engine.batch import PackedBatch
from checkengine.engine_shim.engine.kernels import KERNELS, AttentionCall, Rows
from checkengine.engine_shim.engine.kv_memory import CompactMemory, LayerMemory
from checkengine.engine_shim.engine.planted import Told
from checkengine.engine_shim.faults import build_faults, describe_fault
from checkengine.engine_shim.faults.fault import Fault
from checkengine.replay.op_call import Beside, OpCall

Ints = NDArray[np.int32]
FAULTS = "faults"


class CallRecorder:
    """Sees every attention call of a forward and keeps those of the chosen rows and layers."""

    def __init__(
        self,
        memory: CompactMemory,
        batch: PackedBatch,
        kernel: str,
        faults: Sequence[Fault],
        rows: Sequence[int],
        layers: Sequence[int] | None,
    ) -> None:
        self.memory, self.batch, self.kernel, self.rows = memory, batch, kernel, rows
        self.layers = None if layers is None else frozenset(layers)
        self.options = {FAULTS: [describe_fault(fault) for fault in faults]}
        self.order = np.argsort(memory.numbers)
        self.found: list[tuple[OpCall, torch.Tensor]] = []

    def __call__(self, layer: int, call: AttentionCall, output: torch.Tensor) -> None:
        if self.layers is None or layer in self.layers:
            held = torch.from_numpy(self.order.astype(np.int64))
            keys, values = (part[held, call.memory.row] for part in (call.memory.keys, call.memory.values))
            self.found += [(self._call(layer, row, call, keys, values), self._own(row, output)) for row in self.rows]

    def _own(self, row: int, packed: torch.Tensor) -> torch.Tensor:
        first, last = self.batch.first_tokens[row : row + 2].tolist()
        return packed[first:last].clone()

    def _call(self, layer: int, row: int, call: AttentionCall, keys: torch.Tensor, values: torch.Tensor) -> OpCall:
        """`keys` and `values`: a copy of the layer's memory that all rows' calls share."""
        table = self.batch.tables[row]
        length = int(self.batch.lengths[row])
        return OpCall(
            layer=layer,
            row=row,
            kernel=self.kernel,
            query=self._own(row, call.query),
            keys=keys,
            values=values,
            blocks=self.memory.numbers[self.order],
            table=table[: -(-length // self.batch.block_size)].copy(),
            length=length,
            scaling=call.scaling,
            window=call.window,
            softcap=call.softcap,
            sinks=None if call.sinks is None else call.sinks.clone(),
            options=self.options,
        )


def attend(call: OpCall, kernel: str | None = None) -> torch.Tensor:
    """Run one call alone; the faults that it carries act unless the kernel is the reference."""
    name = kernel or call.kernel
    faults = build_faults(call.options.get(FAULTS, ())) if name != "reference" else []
    told = told_of(call)
    rows = told.rows(faults, call.layer, partial(located, call))
    if rows is None:
        rows = Rows.of(located(call, told.tables), told.lengths, told.query_lengths, told.first_tokens)
    output = planted.attend(faults, KERNELS[name], call.layer, attention_call(call), rows, told)
    first, last = told.first_tokens[call.place : call.place + 2].tolist()
    return output[first:last]


def all_rows(call: OpCall) -> list[Beside]:
    """The call's own row and those beside it, in the order of the batch."""
    own = Beside(call.query, call.table, call.length)
    return [*call.beside[: call.place], own, *call.beside[call.place :]]


def told_of(call: OpCall) -> Told:
    rows = all_rows(call)
    tables = np.full((len(rows), max(len(row.table) for row in rows) + 1), -1, np.int32)
    for index, row in enumerate(rows):
        tables[index, : len(row.table)] = row.table
    lengths = np.array([row.length for row in rows], np.int32)
    queries = np.array([len(row.query) for row in rows], np.int32)
    first_tokens = np.concatenate(([0], np.cumsum(queries))).astype(np.int32)
    return Told(tables, lengths, queries, first_tokens, call.block_size)


def attention_call(call: OpCall) -> AttentionCall:
    layered = LayerMemory(call.keys.unsqueeze(1).contiguous(), call.values.unsqueeze(1).contiguous(), 0)
    query = torch.cat([row.query for row in all_rows(call)]) if call.beside else call.query
    return AttentionCall(query, layered, call.scaling, call.window, call.softcap, call.sinks)


def located(call: OpCall, tables: Ints) -> Ints:
    """Rows of the call's memory. A kernel reads wrong memory where a fault says so; a block that the call does not hold
    stands for the nearest that it does, since memory outside of ours would end the process."""
    places = np.searchsorted(call.blocks, tables).astype(np.int32)
    return np.where(tables < 0, -1, np.minimum(places, len(call.blocks) - 1)).astype(np.int32)


def widened(call: OpCall) -> OpCall:
    """In float64."""
    sinks: Any = None if call.sinks is None else call.sinks.double()
    beside = tuple(replace(row, query=row.query.double()) for row in call.beside)
    query, keys, values = call.query.double(), call.keys.double(), call.values.double()
    return replace(call, query=query, keys=keys, values=values, sinks=sinks, beside=beside)
