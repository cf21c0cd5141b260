"""vLLM's ExampleConnector with a fault planted into the transfer, once: what arrives is not what was sent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

LAYER = 3
"""Whose block a fault of either side changes."""


class FaultyConnector(ExampleConnector):  # type: ignore[misc]
    """$KV_FAULT is a file that holds the fault's name and side; it is gone when it has struck.

    On the prefill side the block changes after it was handed over and before it is sealed, on the decode side after the
    layer was read; prefill's memory is mended before the next step, so that its own answer is the clean one.
    """

    _mend: tuple[torch.Tensor, torch.Tensor] | None = None
    _loaded: int | None = None
    """The first block of what this step loads."""

    def start_load_kv(self, forward_context: Any, **keywords: Any) -> None:
        loads = [request for request in self._get_connector_metadata().requests if not request.is_store]
        self._loaded = int(loads[0].slot_mapping[0]) // self._block_size if loads else None
        fault = planted("transport") if loads else None
        if fault is None:
            super().start_load_kv(forward_context, **keywords)
            return
        caches = [layer.kv_cache for layer in forward_context.no_compile_layers.values() if hasattr(layer, "kv_cache")]
        block = int(loads[0].slot_mapping[0]) // self._block_size
        old = [cache[block].clone() for cache in caches]
        super().start_load_kv(forward_context, **keywords)
        strike(fault, [cache[block] for cache in caches], old)

    def wait_for_layer_load(self, layer_name: str) -> None:
        # A step that loads nothing starts its loads after its forward pass, when the block is not sealed yet.
        if self._mend is not None and ".0." in layer_name:
            block, whole = self._mend
            block.copy_(whole)
            self._mend = None
        super().wait_for_layer_load(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **keywords: Any) -> None:
        super().save_kv_layer(layer_name, kv_layer, attn_metadata, **keywords)
        if f".{LAYER}." not in layer_name:
            return
        stores = [request for request in self._get_connector_metadata().requests if request.is_store]
        if stores and (fault := planted("prefill")):
            block = kv_layer[int(stores[0].slot_mapping[0]) // self._block_size]
            self._mend = (block, block.clone())
            change(fault, block)
        if self._loaded is not None and (fault := planted("decode")):
            change(fault, kv_layer[self._loaded])


def planted(side: str) -> str | None:
    path = Path(os.environ.get("KV_FAULT", ""))
    if not path.is_file():
        return None
    fault, where = json.loads(path.read_text())
    if where != side:
        return None
    path.unlink()
    return str(fault)


def change(fault: str, block: torch.Tensor) -> None:
    """One layer's block, in place."""
    if fault == "bit flip":
        block.view(torch.int32).view(-1)[77] ^= 1 << 23
    elif fault == "late write":
        block.add_(0.5)
    else:
        raise ValueError(fault)


def strike(fault: str, blocks: list[torch.Tensor], old: list[torch.Tensor]) -> None:
    """`blocks` are the first loaded block's views in each layer."""
    if fault in ("bit flip", "late write"):
        change(fault, blocks[LAYER])
    elif fault == "swapped layers":
        third = blocks[3].clone()
        blocks[3].copy_(blocks[4])
        blocks[4].copy_(third)
    elif fault == "read before ready":
        for block, before in zip(blocks, old, strict=True):
            block.copy_(before)
    elif fault == "short restore":
        for block, before in zip(blocks, old, strict=True):
            block[:, block.shape[1] // 2 :] = before[:, block.shape[1] // 2 :]
    else:
        raise ValueError(fault)
