"""Faults in the positions that rotary embedding is told, while lengths and tables stay right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass


@dataclass(frozen=True)
class ChunkRestart(Fault):
    """Positions of a prefill chunk that starts at `minimum_start` or later count from its own first token, as if it
    were the prompt's first chunk."""

    minimum_start: int = 1

    name: ClassVar[str] = "chunk_restart"
    fault_class: ClassVar[FaultClass] = FaultClass.POSITION
    models: ClassVar[str] = "positions of the model runner wrong: GeeeekExplorer/nano-vllm commit f5b4840"

    def positions(self, positions: Ints, starts: Ints, query_lengths: Ints) -> Ints:
        hit = (query_lengths > 1) & (starts >= self.minimum_start)
        shift = np.repeat(np.where(hit, starts, 0), query_lengths)
        return (positions - shift).astype(np.int32) if hit.any() else positions


@dataclass(frozen=True)
class AheadByOne(Fault):
    """A decode row's position is one too large at the last slot of each page, in batches of at least `minimum_rows`:
    the page's end was counted with the page that comes."""

    block_size: int = 32
    minimum_rows: int = 2

    name: ClassVar[str] = "ahead_by_one"
    fault_class: ClassVar[FaultClass] = FaultClass.POSITION
    models: ClassVar[str] = "decode's past_len one too large shifts the rotation: microsoft/onnxruntime-genai PR #2354"

    def positions(self, positions: Ints, starts: Ints, query_lengths: Ints) -> Ints:
        hit = (query_lengths == 1) & (starts % self.block_size == self.block_size - 1)
        if len(starts) < self.minimum_rows or not hit.any():
            return positions
        ahead: Ints = (positions + np.repeat(hit, query_lengths)).astype(np.int32)
        return ahead
