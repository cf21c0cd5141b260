"""What a model's attention looks like, learnt by running it once; refuses models that the engine would run wrong."""

from __future__ import annotations

from typing import Any

import torch

from checkengine.engine_shim.engine.attention import IMPLEMENTATION, attending
from checkengine.engine_shim.engine.kv_memory import KVLayout, layout_of


class UnsupportedModel(ValueError):
    """The engine cannot run this model; the message says which part of it and why."""


class _Probe:
    """Notes shapes; the output is of the right shape and means nothing."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int, int]] = {}

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
    ) -> torch.Tensor:
        self.shapes[module.layer_idx] = (key.shape[1], key.shape[2], value.shape[2])
        return query.new_zeros((query.shape[0], query.shape[1], value.shape[2]))


def prepare(model: Any) -> KVLayout:
    """Plugs our attention into the model and returns the layout of its KV memory; raises UnsupportedModel."""
    model.set_attn_implementation(IMPLEMENTATION)
    probe = _Probe()
    with torch.no_grad(), attending(probe):
        model(input_ids=torch.zeros((1, 2), dtype=torch.long), position_ids=torch.arange(2)[None], use_cache=False)
    return layout_of(probe.shapes, model.dtype)
