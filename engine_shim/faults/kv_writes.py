"""Cache writers that write elsewhere, or something else."""

from __future__ import annotations

from typing import ClassVar

import torch

from checkengine.engine_shim.faults.fault import Fault, Ints, last_tokens, of_layer
from checkengine.replay.judge.fault_class import FaultClass


class NullBlockWrite(Fault):
    """The first token of a decode row's new page is written into block 0: its own slot keeps what it held."""

    name: ClassVar[str] = "null_block_write"
    models: ClassVar[str] = "a slot mapping of zeros writes block 0: vllm-project/vllm#39444"
    fault_class: ClassVar[FaultClass] = FaultClass.WRITE

    def __init__(self, block_size: int = 32, layers: tuple[int, ...] = ()) -> None:
        self.block_size, self.layers = block_size, tuple(layers)

    def writes(self, layer: int, slots: Ints, lengths: Ints, query_lengths: Ints) -> Ints:
        hit = (query_lengths == 1) & (lengths % self.block_size == 1)
        if not of_layer(layer, self.layers) or not hit.any():
            return slots
        slots = slots.copy()
        slots[last_tokens(query_lengths)[hit]] %= self.block_size
        return slots


class ChunkSlots(Fault):
    """In a prefill chunk that continues a prompt, the last token is written over the one before it."""

    name: ClassVar[str] = "chunk_slots"
    models: ClassVar[str] = "slot mappings of chunked prefill are wrong: vllm-project/vllm#36580"
    fault_class: ClassVar[FaultClass] = FaultClass.WRITE

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = tuple(layers)

    def writes(self, layer: int, slots: Ints, lengths: Ints, query_lengths: Ints) -> Ints:
        hit = (query_lengths > 1) & (lengths > query_lengths)
        if not of_layer(layer, self.layers) or not hit.any():
            return slots
        last = last_tokens(query_lengths)[hit]
        slots = slots.copy()
        slots[last] = slots[last - 1]
        return slots


class HalfWritten(Fault):
    """Of each decode row's value, the last half of the dimensions is left out of the write as zeros."""

    name: ClassVar[str] = "half_written"
    models: ClassVar[str] = (
        "regions taken for one because their address is one: a truncated copy: vllm-project/vllm#57661"
    )
    fault_class: ClassVar[FaultClass] = FaultClass.WRITE

    def __init__(self, minimum_length: int = 0, layers: tuple[int, ...] = ()) -> None:
        self.minimum_length, self.layers = minimum_length, tuple(layers)

    def written(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, lengths: Ints, query_lengths: Ints
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hit = (query_lengths == 1) & (lengths >= self.minimum_length)
        if not of_layer(layer, self.layers) or not hit.any():
            return keys, values
        values = values.clone()
        values[torch.from_numpy(last_tokens(query_lengths)[hit]), :, values.shape[2] // 2 :] = 0
        return keys, values


class KeyScaleAtWrite(Fault):
    """Keys of the tokens at a page's start are quantised with the scale of the page before."""

    name: ClassVar[str] = "key_scale_at_write"
    models: ClassVar[str] = "KV scales that are not restored, or not the page's: vllm-project/vllm#25800"
    fault_class: ClassVar[FaultClass] = FaultClass.SCALE

    def __init__(self, factor: float = 0.75, block_size: int = 32, layers: tuple[int, ...] = ()) -> None:
        self.factor, self.block_size, self.layers = factor, block_size, tuple(layers)

    def written(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, lengths: Ints, query_lengths: Ints
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hit = (query_lengths == 1) & (lengths % self.block_size == 1)
        if not of_layer(layer, self.layers) or not hit.any():
            return keys, values
        keys = keys.clone()
        keys[torch.from_numpy(last_tokens(query_lengths)[hit])] *= self.factor
        return keys, values
