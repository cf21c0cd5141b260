"""Faults that come out otherwise each time that they strike: when they may strike is the step's business alone."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import ClassVar

import torch

from checkengine.engine_shim.engine.kernel import AttentionCall, Rows
from checkengine.engine_shim.faults.blind.row_attention import (
    decode_rows,
    row_slots,
    weighted,
    weights_of,
)
from checkengine.engine_shim.faults.fault import Fault
from checkengine.replay.judge.fault_class import FaultClass

_SHARES = 1 << 20


@dataclass(frozen=True)
class RacySplit(Fault):
    """A decode row of at least two splits loses, in a share `rate` of its turns, its first split: the pass that
    combines them did not wait. The batch must have at least `minimum_rows` rows, or there is nobody to race with."""

    split: int = 64
    rate: float = 0.5
    minimum_rows: int = 2
    layer: int = 0

    name: ClassVar[str] = "racy_split"
    fault_class: ClassVar[FaultClass] = FaultClass.NONDETERMINISM
    models: ClassVar[str] = "about 1 % of decode steps go wrong with split paged KV: pytorch/torchtitan#3235"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if layer != self.layer or len(rows.lengths) < self.minimum_rows:
            return
        for row, token, _ in decode_rows(rows, 2 * self.split):
            if secrets.randbelow(_SHARES) < self.rate * _SHARES:
                keys, values = (state[self.split :] for state in row_slots(call, rows, row))
                weights = weights_of(call, call.query[token : token + 1], keys, keys.new_zeros(1))
                output[token] = weighted(weights, values)[0]


@dataclass(frozen=True)
class AtomicOrder(Fault):
    """Weighted values of decode rows of at least `minimum_length` slots are added up in whatever order atomics arrive
    in: right but for the last bits, and these never twice the same."""

    minimum_length: int = 2
    minimum_rows: int = 2

    name: ClassVar[str] = "atomic_order"
    fault_class: ClassVar[FaultClass] = FaultClass.NONDETERMINISM
    models: ClassVar[str] = "greedy completions that differ from run to run: vllm-project/vllm#23138, #53257"

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if len(rows.lengths) < self.minimum_rows:
            return
        for row, token, length in decode_rows(rows, self.minimum_length):
            keys, values = row_slots(call, rows, row)
            weights = weights_of(call, call.query[token : token + 1], keys, keys.new_zeros(1))
            arrived = torch.tensor(sorted(range(length), key=lambda _: secrets.randbits(32)))
            output[token] = weighted(weights[..., arrived], values[arrived])[0]
