"""Attention kernels that read the right slots and compute something else with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from checkengine.engine_shim.faults.fault import Fault, Ints, last_tokens, of_layer
from checkengine.engine_shim.faults.textbook import RowAttention, rewrite
from checkengine.replay.judge.fault_class import FaultClass

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.kernel import AttentionCall, Rows


class _Arithmetic(Fault):
    fault_class: ClassVar[FaultClass] = FaultClass.ARITHMETIC

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = tuple(layers)


class SoftmaxScale(_Arithmetic):
    """Scores are scaled by a head size that was padded to twice its own."""

    name: ClassVar[str] = "softmax_scale"
    models: ClassVar[str] = "attention scores multiplied with the wrong scaling factor: NVIDIA/Megatron-LM#848"
    fault_class: ClassVar[FaultClass] = FaultClass.SCALE

    def call(self, layer: int, call: AttentionCall) -> AttentionCall:
        return replace(call, scaling=call.scaling * 0.5**0.5) if of_layer(layer, self.layers) else call


class ScalePage(Fault):
    """Decode reads keys and values of each row's last page with the scale of another page."""

    name: ClassVar[str] = "scale_page"
    models: ClassVar[str] = (
        "scales of an FP8 KV cache that are not the pages' own: vllm-project/vllm#33638, NVIDIA/TensorRT-LLM#2699"
    )
    fault_class: ClassVar[FaultClass] = FaultClass.SCALE

    def __init__(self, factor: float = 1.25, block_size: int = 32, layers: tuple[int, ...] = ()) -> None:
        self.factor, self.block_size, self.layers = factor, block_size, tuple(layers)

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if of_layer(layer, self.layers):
            hit = np.flatnonzero((rows.query_lengths == 1) & (rows.lengths > self.block_size)).tolist()
            rewrite(call, rows, output, hit, self._compute)

    def _compute(self, row: RowAttention) -> torch.Tensor:
        scale = torch.ones(row.own, 1, dtype=row.keys.dtype)
        scale[(row.own - 1) // self.block_size * self.block_size :] = self.factor
        return row.weights(row.scores(row.keys * scale), row.seen()) @ (row.values * scale)


class NoSoftcap(_Arithmetic):
    """Scores are not capped."""

    name: ClassVar[str] = "no_softcap"
    models: ClassVar[str] = "the soft cap handed to the paged kernel is 0, which is none: vllm-project/vllm-metal#665"

    def call(self, layer: int, call: AttentionCall) -> AttentionCall:
        return replace(call, softcap=None) if of_layer(layer, self.layers) else call


class NoSinks(_Arithmetic):
    """Attention sinks take no part in the softmax."""

    name: ClassVar[str] = "no_sinks"
    models: ClassVar[str] = "the paged kernel's sinks were never switched on: vllm-project/vllm-metal#550"

    def call(self, layer: int, call: AttentionCall) -> AttentionCall:
        return replace(call, sinks=None) if of_layer(layer, self.layers) else call


class WrongKVHead(_Arithmetic):
    """Query head h reads KV head h modulo their number instead of its group's."""

    name: ClassVar[str] = "wrong_kv_head"
    models: ClassVar[str] = (
        "KV heads never reached under grouped queries: PSAL-POSTECH/ONNXim#33, HazyResearch/HipKittens#22"
    )

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if of_layer(layer, self.layers):
            self._heads = call.memory.keys.shape[3]
            rewrite(call, rows, output, list(range(len(rows.lengths))), self._compute)

    def _compute(self, row: RowAttention) -> torch.Tensor:
        heads = row.query.shape[0]
        first = torch.arange(self._heads) * (heads // self._heads)
        chosen = first[torch.arange(heads) % self._heads]
        return row.weights(row.scores(row.keys[chosen]), row.seen()) @ row.values[chosen]


class SwappedHeads(_Arithmetic):
    """The first two heads' outputs are in each other's places."""

    name: ClassVar[str] = "swapped_heads"
    models: ClassVar[str] = "KV layout misread where there are two KV heads: LMCache/LMCache#4467"

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        if of_layer(layer, self.layers) and output.shape[1] > 1:
            output[:, :2] = output[:, :2].flip(1)


class SwappedKeyValue(_Arithmetic):
    """Keys are read as values and values as keys."""

    name: ClassVar[str] = "swapped_key_value"
    models: ClassVar[str] = (
        "the two halves of a fused KV page taken for its two heads, or the other way round: LMCache/LMCache#4467"
    )

    def attended(self, layer: int, call: AttentionCall, rows: Rows, output: torch.Tensor) -> None:
        if of_layer(layer, self.layers) and call.memory.keys.shape == call.memory.values.shape:
            rewrite(call, rows, output, list(range(len(rows.lengths))), self._compute)

    def _compute(self, row: RowAttention) -> torch.Tensor:
        return row.weights(row.scores(row.values), row.seen()) @ row.keys


class MissingZeroing(_Arithmetic):
    """The accumulator of a decode row of a full page's length is not zeroed: it holds what the buffer held before."""

    name: ClassVar[str] = "missing_zeroing"
    models: ClassVar[str] = "padding of a kernel's buffer not initialised to zero: vllm-project/vllm#36616"

    def __init__(self, block_size: int = 32, residue: float = 0.05, layers: tuple[int, ...] = ()) -> None:
        self.block_size, self.residue, self.layers = block_size, residue, tuple(layers)

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        hit = (query_lengths == 1) & (lengths % self.block_size == 0)
        if not of_layer(layer, self.layers) or not hit.any():
            return
        before = torch.randn(output.shape[2], generator=torch.Generator().manual_seed(layer)) * self.residue
        output[torch.from_numpy(last_tokens(query_lengths)[hit]), -1] += before.to(output.dtype)
