"""What a loaded model asks of its device, and what the device gives."""

from __future__ import annotations

import logging
from typing import Any

import torch

from checkengine.dashboards.limits import NO_LIMIT, PhysicalLimit
from checkengine.engine_shim.device_speed import measure_device

logger = logging.getLogger("checkengine.limits")


def physical_limit(model: Any) -> PhysicalLimit:
    """Measures the device for a fraction of a second: call before requests are taken. NO_LIMIT where it cannot."""
    try:
        weights = list(unique_weights(model))
        speed = measure_device(weights[0].device, weights[0].dtype)
    except (RuntimeError, IndexError, NotImplementedError) as error:
        logger.warning("the distance to the device's limit is not measured: %s", error)
        return NO_LIMIT
    return PhysicalLimit(
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
        kv_bytes_per_token=kv_bytes_per_token(model.config, weights[0].element_size()),
        parameters=sum(weight.numel() for weight in weights),
        bandwidth=speed.bandwidth,
        flops=speed.flops,
    )


def unique_weights(model: Any) -> list[torch.Tensor]:
    """Tied weights are read once; a table of embeddings that is not also the output layer is hardly read at all."""
    output = model.get_output_embeddings()
    inputs = model.get_input_embeddings()
    left_out = {id(inputs.weight)} if output is not None and inputs.weight is not output.weight else set()
    return [weight for weight in model.parameters() if id(weight) not in left_out]


def kv_bytes_per_token(config: Any, element_size: int) -> int:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * head * element_size)
