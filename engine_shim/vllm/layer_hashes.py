"""A hash of each row's output of each layer's attention, and of the hidden state behind it, while a step runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.engine.op_hashes import OpHashes
from checkengine.replay.executor import OpHash


class LayerHashes:
    """Hooks on the model's layers until `remove`. Layers that vLLM compiled do not call them: then there are none."""

    def __init__(self, model: Any, query_lengths: NDArray[np.int32]) -> None:
        self._hashes = OpHashes(np.concatenate([[0], np.cumsum(query_lengths)]).astype(np.int32))
        self._tokens = int(query_lengths.sum())
        self._hooks = []
        for index, layer in enumerate(decoder_layers(model)):
            attention = getattr(getattr(layer, "self_attn", None), "attn", None)
            if attention is not None:
                self._hooks.append(attention.register_forward_hook(self._observer("attention", index)))
            self._hooks.append(layer.register_forward_hook(self._observer("hidden", index)))

    @property
    def entries(self) -> list[OpHash]:
        return self._hashes.entries

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _observer(self, op: str, layer: int) -> Any:
        def observe(module: Any, inputs: Any, output: Any) -> None:
            parts = output if isinstance(output, tuple) else (output,)
            tensors = [part[: self._tokens].flatten(1) for part in parts if isinstance(part, torch.Tensor)]
            self._hashes(op, layer, torch.cat(tensors, 1) if len(tensors) > 1 else tensors[0])

        return observe


def decoder_layers(model: Any) -> list[Any]:
    """In their order; empty for a model that is built in another way than most."""
    inner = getattr(model, "model", model)
    layers = getattr(inner, "layers", None)
    return [] if layers is None else list(layers)
