"""vLLM's ExampleConnector with a fault planted into the transfer, once: what arrives is not what was sent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector


class FaultyConnector(ExampleConnector):  # type: ignore[misc]
    """$KV_FAULT is a file that holds the fault's name; it is gone when it has struck."""

    def start_load_kv(self, forward_context: Any, **keywords: Any) -> None:
        loads = [request for request in self._get_connector_metadata().requests if not request.is_store]
        fault = planted() if loads else None
        if fault is None:
            super().start_load_kv(forward_context, **keywords)
            return
        caches = [layer.kv_cache for layer in forward_context.no_compile_layers.values() if hasattr(layer, "kv_cache")]
        block = int(loads[0].slot_mapping[0]) // self._block_size
        old = [cache[block].clone() for cache in caches]
        super().start_load_kv(forward_context, **keywords)
        strike(fault, [cache[block] for cache in caches], old)


def planted() -> str | None:
    path = Path(os.environ.get("KV_FAULT", ""))
    if not path.is_file():
        return None
    name = json.loads(path.read_text())
    path.unlink()
    return str(name)


def strike(fault: str, blocks: list[torch.Tensor], old: list[torch.Tensor]) -> None:
    """`blocks` are the first loaded block's views in each layer."""
    if fault == "bit flip":
        blocks[3].view(torch.int32).view(-1)[77] ^= 1 << 23
    elif fault == "swapped layers":
        third = blocks[3].clone()
        blocks[3].copy_(blocks[4])
        blocks[4].copy_(third)
    elif fault == "read before ready":
        for block, before in zip(blocks, old, strict=True):
            block.copy_(before)
    elif fault == "late write":
        blocks[-1].add_(0.5)
    elif fault == "short restore":
        for block, before in zip(blocks, old, strict=True):
            block[:, block.shape[1] // 2 :] = before[:, block.shape[1] // 2 :]
    else:
        raise ValueError(fault)
