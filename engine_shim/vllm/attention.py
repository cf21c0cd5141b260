"""vLLM's CPU attention, call by call: watched in a step, run alone, or replaced by float64 on the same pages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.vllm.kv_cache import PackedCache
from checkengine.replay.executor import CannotReplayError
from checkengine.replay.op_call import OpCall

Ints = NDArray[np.int32]


class Attention:
    """Of a worker whose layers are bound to some memory."""

    def __init__(self, runner: Any, layers: dict[str, Any]) -> None:
        self._layers = list(layers.values())
        self._index = {id(layer): index for index, layer in enumerate(self._layers)}
        groups = [group for groups in runner.attn_groups for group in groups]
        self._builder = groups[0].get_metadata_builder()

    @contextmanager
    def exact(self, cache: PackedCache) -> Iterator[None]:
        """Attention in float64 on the pages as they are; everything else is vLLM's."""

        def forward(
            layer: Any, query: Any, key: Any, value: Any, pages: Any, metadata: Any, output: Any, **_: Any
        ) -> Any:
            if metadata is not None:
                index = self._index[id(layer)]
                for row, (first, last) in enumerate(row_spans(metadata)):
                    exact = self._exact_row(cache, index, query[first:last], metadata, row)
                    output[first:last] = exact.reshape(output[first:last].shape).to(output.dtype)
            return output

        with self._instead(forward):
            yield

    @contextmanager
    def watched(self, seen: Any) -> Iterator[None]:
        """`seen(layer index, query, metadata, output)` after every call of vLLM's own kernel."""

        def forward(
            layer: Any, query: Any, key: Any, value: Any, pages: Any, metadata: Any, output: Any, **more: Any
        ) -> Any:
            impl = layer.impl
            result = type(impl).forward(impl, layer, query, key, value, pages, metadata, output, **more)
            if metadata is not None:
                seen(self._index[id(layer)], query, metadata, output)
            return result

        with self._instead(forward):
            yield

    def call_of(
        self,
        index: int,
        row: int,
        query: torch.Tensor,
        metadata: Any,
        pages: dict[str, torch.Tensor],
        blocks: Ints,
        kernel: str,
    ) -> OpCall:
        """`pages`: the layer's memory, (blocks, block_size, heads, dim) under "key" and "value"; `blocks` are their
        recorded numbers."""
        impl = self._layers[index].impl
        first, last = row_spans(metadata)[row]
        length = int(metadata.seq_lens[row])
        places = metadata.block_table[row, : -(-length // pages["key"].shape[1])].numpy()
        return OpCall(
            layer=index,
            row=row,
            kernel=kernel,
            query=query[first:last].reshape(last - first, impl.num_heads, impl.head_size).clone(),
            keys=pages["key"],
            values=pages["value"],
            blocks=blocks,
            table=blocks[places],
            length=length,
            scaling=float(impl.scale),
            window=impl.sliding_window if impl.sliding_window > 0 else None,
            softcap=float(impl.logits_soft_cap) or None,
            sinks=None if impl.sinks is None else impl.sinks.detach().clone(),
        )

    def alone(self, call: OpCall, cache: torch.Tensor) -> torch.Tensor:
        """One row through vLLM's kernel; `cache` is one layer's memory, aligned with the call's blocks."""
        layer = self._layers[call.layer]
        starts = torch.tensor([0, len(call.query)], dtype=torch.int32)
        lengths = torch.tensor([call.length], dtype=torch.int32)
        table = torch.from_numpy(np.searchsorted(call.blocks, call.table).astype(np.int32)).unsqueeze(0)
        # The entry behind a table's end is vLLM's null block, the first one here.
        table = torch.cat([table, torch.zeros((1, 1), dtype=torch.int32)], 1)
        metadata = self._metadata(starts, lengths, table, len(call.query), call.length)
        output = torch.zeros_like(call.query)
        layer.impl.forward(layer, call.query, None, None, cache, metadata, output)
        return output

    def _metadata(self, starts: Any, lengths: Any, table: Any, tokens: int, longest: int) -> Any:
        """As vLLM's own builder makes it for a step."""
        from vllm import envs
        from vllm.v1.attention.backends import cpu_attn

        builder = self._builder
        plan = cpu_attn.ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(lengths),
            num_heads=builder.num_heads,
            num_kv_heads=builder.num_kv_heads,
            head_dim=builder.head_dim,
            seq_lens=lengths,
            dtype=builder.dtype,
            query_start_loc=starts,
            causal=True,
            sliding_window_size=builder.window_size,
            isa=builder.isa,
            enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
            dynamic_causal=None,
            kv_cache_dtype=builder.kv_cache_dtype,
        )
        return cpu_attn.CPUAttentionMetadata(
            num_actual_tokens=tokens,
            max_query_len=tokens,
            query_start_loc=starts,
            max_seq_len=longest,
            seq_lens=lengths,
            block_table=table,
            slot_mapping=torch.empty(0, dtype=torch.int64),
            scheduler_metadata=plan,
        )

    def _exact_row(self, cache: PackedCache, index: int, query: torch.Tensor, metadata: Any, row: int) -> torch.Tensor:
        impl = self._layers[index].impl
        if impl.alibi_slopes is not None:
            raise CannotReplayError(
                "the float64 kernel knows no ALiBi: there is no reference for this model's attention"
            )
        length = int(metadata.seq_lens[row])
        size = cache.shape.block_size
        table = metadata.block_table[row, : -(-length // size)].to(torch.int64)
        pages = cache.pages(index, table)
        call = OpCall(
            layer=index,
            row=row,
            kernel="float64",
            query=query.reshape(len(query), impl.num_heads, impl.head_size).double(),
            keys=pages["key"].double(),
            values=pages["value"].double(),
            blocks=np.arange(len(table), dtype=np.int32),
            table=np.arange(len(table), dtype=np.int32),
            length=length,
            scaling=float(impl.scale),
            window=impl.sliding_window if impl.sliding_window > 0 else None,
            softcap=float(impl.logits_soft_cap) or None,
            sinks=None if impl.sinks is None else impl.sinks.double(),
        )
        return exact_attention(call)

    @contextmanager
    def _instead(self, forward: Any) -> Iterator[None]:
        implementations = [layer.impl for layer in self._layers]
        for implementation in implementations:
            implementation.forward = forward
        try:
            yield
        finally:
            for implementation in implementations:
                del implementation.forward


def row_spans(metadata: Any) -> list[tuple[int, int]]:
    starts = metadata.query_start_loc.tolist()
    return list(itertools.pairwise(starts))


def exact_attention(call: OpCall) -> torch.Tensor:
    """Shape (tokens, heads, value_dim), in the dtype of the call's tensors."""
    tokens, heads = call.query.shape[:2]
    repeat = heads // call.keys.shape[2]
    own = (part.flatten(0, 1)[: call.length].transpose(0, 1) for part in (call.keys, call.values))
    keys, values = (part.repeat_interleave(repeat, 0) for part in own)
    scores = call.query.transpose(0, 1) @ keys.transpose(1, 2) * call.scaling
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    position = torch.arange(call.length - tokens, call.length).unsqueeze(1)
    key = torch.arange(call.length).unsqueeze(0)
    seen = key <= position
    if call.window:
        seen = seen & (key > position - call.window)
    scores = scores.masked_fill(~seen, -torch.inf)
    if call.sinks is None:
        return (torch.softmax(scores, -1) @ values).transpose(0, 1)
    sinks = call.sinks.view(heads, 1, 1).expand(heads, tokens, 1)
    weights = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    return (weights @ values).transpose(0, 1)
