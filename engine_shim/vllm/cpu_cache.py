"""Where vLLM's CPU worker keeps its KV memory, and how it writes there."""

from __future__ import annotations

from typing import Any

import torch

from checkengine.engine_shim.vllm.kv_cache import KVMemoryError, PackedCache, Writer


def cache_layers(runner: Any) -> dict[str, Any]:
    """vLLM's attention layers by name, in the order of the model. KVMemoryError for a model whose state is not one
    group of attention pages."""
    groups = runner.kv_cache_config.kv_cache_groups
    if len(groups) != 1 or not hasattr(groups[0].kv_cache_spec, "num_kv_heads"):
        raise KVMemoryError("this model keeps more state than one group of attention pages: it cannot be captured yet")
    context = runner.compilation_config.static_forward_context
    layers = {name: context[name] for name in groups[0].layer_names}
    if any(getattr(layer, "kv_sharing_target_layer_name", None) for layer in layers.values()):
        raise KVMemoryError("layers of this model share their KV pages: it cannot be captured yet")
    return layers


def cache_writer(layer: Any) -> Writer:
    """vLLM's own cache writer, as its CPU attention layers call it."""
    if not hasattr(layer, "isa"):
        raise KVMemoryError("this engine's attention is not vLLM's CPU attention: its KV pages cannot be captured yet")

    def write(keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
        layer.impl.do_kv_cache_update(layer, keys, values, cache, slots)

    return write


def packed_cache(runner: Any) -> PackedCache:
    """Of a worker whose KV memory is allocated; KVMemoryError where it cannot be read slot by slot."""
    layers = cache_layers(runner)
    return PackedCache([layer.kv_cache for layer in layers.values()], cache_writer(next(iter(layers.values()))))
