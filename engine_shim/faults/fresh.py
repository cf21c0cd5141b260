"""Planted faults of a second set, written after the judge was done and judged once as it was then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from checkengine.engine_shim.faults.blind.row_attention import (
    acts_in,
    decode_rows,
    row_slots,
    weighted,
    weights_of,
)
from checkengine.engine_shim.faults.blind.workload import Strike, Workload
from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.batch import PackedBatch
    from checkengine.engine_shim.engine.kernel import AttentionCall, Rows
    from checkengine.engine_shim.engine.kv_memory import KVMemory


@dataclass(frozen=True)
class AcceptedIndex(Fault):
    """A decode row whose last page holds `offset` tokens reads that page from the row's first block: the index of the
    accepted token was left at 0."""

    offset: int = 3
    block_size: int = 32

    name: ClassVar[str] = "accepted_index"
    fault_class: ClassVar[FaultClass] = FaultClass.WRONG_PAGE
    models: ClassVar[str] = "state read from block[0] in place of block[accepted - 1]: vllm-project/vllm#40831, #40738"

    def reads(self, layer: int, tables: Ints, lengths: Ints, query_lengths: Ints) -> tuple[Ints, Ints]:
        hit = (query_lengths == 1) & (lengths % self.block_size == self.offset) & (lengths > self.block_size)
        if not hit.any():
            return tables, lengths
        tables = tables.copy()
        tables[hit, lengths[hit] // self.block_size] = tables[hit, 0]
        return tables, lengths


@dataclass(frozen=True)
class LostRankPages(Fault):
    """Pages are dealt to two ranks in turn, and the second rank's part of a decode row is left out of the sum where
    the row has more than `minimum_length` tokens."""

    minimum_length: int = 128
    block_size: int = 32

    name: ClassVar[str] = "lost_rank_pages"
    fault_class: ClassVar[FaultClass] = FaultClass.UNDER_READ
    models: ClassVar[str] = "decode context parallel, random tokens beyond about 128: vllm-project/vllm#54300"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        for row, token, length in decode_rows(rows, self.minimum_length):
            keys, values = row_slots(call, rows, row)
            bias = torch.where(torch.arange(length) // self.block_size % 2 == 1, -torch.inf, 0.0).to(keys.dtype)
            output[token] = weighted(weights_of(call, call.query[token : token + 1], keys, bias), values)[0]


@dataclass(frozen=True)
class LeakingWeight(Fault):
    """In batches of at least `minimum_rows` a decode row adds the value past its end, in its last page, with a small
    constant weight: what is left in a register of the tile before."""

    weight: float = 1e-3
    minimum_rows: int = 2

    name: ClassVar[str] = "leaking_weight"
    fault_class: ClassVar[FaultClass] = FaultClass.OVER_READ
    models: ClassVar[str] = "V slots past seq_len times what is left in the weights: vllm-project/vllm#53856"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if len(rows.lengths) < self.minimum_rows:
            return
        for row, token, length in decode_rows(rows):
            tail = row_slots(call, rows, row, whole_pages=True)[1][length : length + 1]
            if len(tail):
                repeated = tail[0].repeat_interleave(output.shape[1] // tail.shape[1], 0)
                output[token] += self.weight * repeated.to(output.dtype)


@dataclass(frozen=True)
class PrefillTailNan(Fault):
    """A prefill chunk multiplies whatever stands behind its last token, up to the page's end, by zero and adds it to
    its last query."""

    minimum_queries: int = 2

    name: ClassVar[str] = "prefill_tail_nan"
    fault_class: ClassVar[FaultClass] = FaultClass.MASKED_READ
    models: ClassVar[str] = "P times V leaks NaN bytes of a pooled cache: vllm-project/vllm#57716, PR #35219"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        for row in rows.prefill.tolist():
            if rows.query_lengths[row] >= self.minimum_queries:
                length, last = int(rows.lengths[row]), int(rows.first_tokens[row + 1]) - 1
                tail = row_slots(call, rows, row, whole_pages=True)[1][length:]
                group = output.shape[1] // tail.shape[1]
                output[last] += (0.0 * tail).sum(0).repeat_interleave(group, 0).to(output.dtype)


@dataclass(frozen=True)
class PositionsOfFirstRow(Fault):
    """Decode rows are rotated with the offset of the batch's first row, its length modulo `modulus`, added to their
    own position."""

    modulus: int = 3
    minimum_rows: int = 2

    name: ClassVar[str] = "positions_of_first_row"
    fault_class: ClassVar[FaultClass] = FaultClass.POSITION
    models: ClassVar[str] = (
        "one request's state lands in another's row, in last step's order: vllm-project/vllm PR#53919"
    )

    def positions(self, positions: Ints, starts: Ints, query_lengths: Ints) -> Ints:
        offset = int(starts[0] + query_lengths[0]) % self.modulus
        if len(starts) < self.minimum_rows or not offset:
            return positions
        return np.where(np.repeat(query_lengths == 1, query_lengths), positions + offset, positions).astype(np.int32)


@dataclass(frozen=True)
class ScalesNotRestored(Fault):
    """Values of tokens from position `minimum_start` on are written as if the cache's scale were 1, which it is not:
    it was not restored after a sleep."""

    scale: float = 0.5
    minimum_start: int = 0

    name: ClassVar[str] = "scales_not_restored"
    fault_class: ClassVar[FaultClass] = FaultClass.SCALE
    models: ClassVar[str] = "FP8 KV scales are not restored after sleep level 2: vllm-project/vllm#25800, PR #28783"

    def written(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, lengths: Ints, query_lengths: Ints
    ) -> tuple[torch.Tensor, torch.Tensor]:
        late = torch.from_numpy(np.repeat(lengths - query_lengths >= self.minimum_start, query_lengths))
        return keys, torch.where(late.view(-1, 1, 1), self.scale * values, values)


@dataclass(frozen=True)
class TruncatedKeys(Fault):
    """Keys of decode tokens are rounded towards zero to multiples of `step`: a four-bit format whose rounding is not
    to nearest."""

    step: float = 0.5
    every: int = 1
    phase: int = 0

    name: ClassVar[str] = "truncated_keys"
    fault_class: ClassVar[FaultClass] = FaultClass.WRITE
    models: ClassVar[str] = "FP4 rounding whose ties go the wrong way: vllm-project/vllm#41985, #42265"

    def written(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, lengths: Ints, query_lengths: Ints
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not acts_in(layer, self.every, self.phase):
            return keys, values
        single = torch.from_numpy(np.repeat(query_lengths == 1, query_lengths)).view(-1, 1, 1)
        return torch.where(single, (keys / self.step).trunc() * self.step, keys), values


@dataclass(frozen=True)
class WriteAfterFree(Fault):
    """Where the batch's last two rows decode, the last one's token is written into the slot of the row before it: the
    step was planned with a table that had been handed on."""

    minimum_rows: int = 3

    name: ClassVar[str] = "write_after_free"
    fault_class: ClassVar[FaultClass] = FaultClass.WRITE
    models: ClassVar[str] = "step N + 1 writes blocks already reallocated: vllm-project/vllm PR #45357"

    def writes(self, layer: int, slots: Ints, lengths: Ints, query_lengths: Ints) -> Ints:
        if len(lengths) < self.minimum_rows or (query_lengths[-2:] != 1).any():
            return slots
        moved = slots.copy()
        moved[-1] = slots[-2]
        return moved


@dataclass(frozen=True)
class ReducedTwice(Fault):
    """The second half of the heads, another rank's part, comes out twice as large in steps of at most `most_rows`
    rows: a one-shot reduction adds it twice."""

    most_rows: int = 4

    name: ClassVar[str] = "reduced_twice"
    fault_class: ClassVar[FaultClass] = FaultClass.ARITHMETIC
    models: ClassVar[str] = "a custom all-reduce returns wrong data: noonghunna/club-3090#922"

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        if len(lengths) <= self.most_rows:
            output[:, output.shape[1] // 2 :] *= 2.0


@dataclass(frozen=True)
class RotatedTokens(Fault):
    """In a step of at least `minimum_rows` sampling rows every row gets the token of the row before it: an
    asynchronous copy lands in the order of rows of the step before."""

    minimum_rows: int = 3

    name: ClassVar[str] = "rotated_tokens"
    fault_class: ClassVar[FaultClass] = FaultClass.SAMPLER
    models: ClassVar[str] = "an async copy lands in step N's row order: vllm-project/vllm PR #53919"

    def sampled(self, tokens: Ints, vocabulary: int) -> Ints:
        return np.roll(tokens, 1).astype(np.int32) if len(tokens) >= self.minimum_rows else tokens


@dataclass(frozen=True)
class FreedWhileRead(Fault):
    """When a decode row of at least `minimum_length` tokens begins a page, its first page is given away too early: by
    the next step it holds another row's newest page."""

    minimum_length: int = 16
    block_size: int = 32

    name: ClassVar[str] = "freed_while_read"
    fault_class: ClassVar[FaultClass] = FaultClass.STALE_KV
    in_code: ClassVar[bool] = False
    models: ClassVar[str] = "in-flight blocks are freed by an optimistic count: vllm-ascend#13501, vllm PR #47728"

    def strikes(self, batch: PackedBatch, memory: KVMemory) -> None:
        starts, size = batch.starts, self.block_size
        hit = (batch.query_lengths == 1) & (starts % size == 1) & (starts >= self.minimum_length)
        for row in np.flatnonzero(hit)[:1]:
            other = (int(row) + 1) % len(starts)
            if other != row and starts[other] > 0:
                source = int(batch.tables[other, (int(starts[other]) - 1) // size])
                for tensor in memory.tensors.values():
                    tensor[int(batch.tables[row, 0])] = tensor[source]


FRESH_FAULTS: Mapping[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        AcceptedIndex,
        LostRankPages,
        LeakingWeight,
        PrefillTailNan,
        PositionsOfFirstRow,
        ScalesNotRestored,
        TruncatedKeys,
        WriteAfterFree,
        ReducedTwice,
        RotatedTokens,
        FreedWhileRead,
    )
}

_NEVER_LONG = {"minimum_length": 10_000}
_NEVER_MANY = {"minimum_rows": 7}

FRESH_STRIKES: Mapping[str, Strike] = {
    "accepted_index": Strike({"block_size": 8}, {"block_size": 8, "offset": 9}),
    "lost_rank_pages": Strike({"block_size": 8, "minimum_length": 20}, {"block_size": 8, **_NEVER_LONG}),
    "leaking_weight": Strike({}, _NEVER_MANY),
    "prefill_tail_nan": Strike({}, {"minimum_queries": 100}, dirty_memory=True),
    "positions_of_first_row": Strike({}, _NEVER_MANY),
    "scales_not_restored": Strike({"minimum_start": 24}, {"minimum_start": 10_000}),
    "truncated_keys": Strike({"every": 2, "phase": 1}, {"every": 100, "phase": 99}),
    "write_after_free": Strike({}, _NEVER_MANY),
    "reduced_twice": Strike({}, {"most_rows": 0}),
    "rotated_tokens": Strike({}, _NEVER_MANY),
    "freed_while_read": Strike({"block_size": 8}, {"block_size": 8, **_NEVER_LONG}, Workload.SHARED_PREFIX),
}
"""As STRIKES: parameters and a workload that make each strike an engine with pages of 8 slots and three layers."""
