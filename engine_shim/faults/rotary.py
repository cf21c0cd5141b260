"""Positions that rotary embedding is told wrong."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass


class PositionShift(Fault):
    """Decode rows of at least `minimum_length` tokens are rotated as if one token further on."""

    name: ClassVar[str] = "position_shift"
    models: ClassVar[str] = "past length one too large in decode, all else consistent: microsoft/onnxruntime-genai#2354"
    fault_class: ClassVar[FaultClass] = FaultClass.POSITION

    def __init__(self, minimum_length: int = 0) -> None:
        self.minimum_length = minimum_length

    def positions(self, positions: Ints, starts: Ints, query_lengths: Ints) -> Ints:
        hit = (query_lengths == 1) & (starts + 1 >= self.minimum_length)
        shifted: Ints = (positions + np.repeat(hit, query_lengths)).astype(np.int32)
        return shifted


class StaleRotaryTable(Fault):
    """Positions beyond a table of sines and cosines that did not grow are rotated as its last row."""

    name: ClassVar[str] = "stale_rotary_table"
    models: ClassVar[str] = "cached cosines and sines of another length are used on: huggingface/transformers#25306"
    fault_class: ClassVar[FaultClass] = FaultClass.POSITION

    def __init__(self, rows: int = 4096) -> None:
        self.rows = rows

    def positions(self, positions: Ints, starts: Ints, query_lengths: Ints) -> Ints:
        return np.minimum(positions, self.rows - 1).astype(np.int32)


class ChunkPositions(Fault):
    """A prefill chunk that continues a prompt counts its positions from one too few."""

    name: ClassVar[str] = "chunk_positions"
    models: ClassVar[str] = "positions do not begin where the chunk does: GeeeekExplorer/nano-vllm commit f5b4840"
    fault_class: ClassVar[FaultClass] = FaultClass.POSITION

    def positions(self, positions: Ints, starts: Ints, query_lengths: Ints) -> Ints:
        hit = (query_lengths > 1) & (starts > 0)
        return (positions - np.repeat(hit, query_lengths)).astype(np.int32)
