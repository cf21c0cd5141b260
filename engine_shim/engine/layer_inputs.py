"""What each layer's attention should be given: its projections run again on the hidden state that it got."""

from __future__ import annotations

import threading
from typing import Any

import torch

from checkengine.engine_shim.engine.attention import attending
from checkengine.engine_shim.engine.batch import PackedBatch
from checkengine.engine_shim.engine.kv_memory import KVMemory
from checkengine.engine_shim.engine.runner import ModelRunner
from checkengine.replay.op_call import LayerInputs

HIDDEN = "hidden_states"


class _Taken(Exception):
    """Attention was reached: the rest of the layer is not needed."""


class _Taking:
    """Stands in for attention, keeps what it is given and ends the layer there."""

    def __init__(self) -> None:
        self.given: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
    ) -> torch.Tensor:
        self.given = query.clone(), key.clone(), value.clone()
        raise _Taken


class _Entering:
    """Keeps what every decoder layer is called with."""

    def __init__(self, model: Any) -> None:
        self.layers = list(model.get_decoder().layers)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._thread = threading.get_ident()
        self._hooks = [layer.register_forward_pre_hook(self._enter, with_kwargs=True) for layer in self.layers]

    def _enter(self, module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return  # A live engine runs the same weights in its own thread.
        copied = tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)
        self.calls.append((copied, dict(options)))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


def entered(runner: ModelRunner, batch: PackedBatch, kernel: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    entering = _Entering(runner.model)
    try:
        runner.forward(batch, kernel=kernel)
    finally:
        entering.close()
    return entering.calls


def layer_inputs(runner: ModelRunner, reference: KVMemory, batch: PackedBatch, row: int) -> list[LayerInputs]:
    """`reference`: memory for the reference kernel's run, which gives the right positions' rotary embeddings; the
    hidden states are those of the runner's own kernel."""
    right = entered(ModelRunner(runner.model, reference, "reference"), batch, "reference")
    recorded = entered(runner, batch, runner.kernel)
    first, last = (int(at) for at in batch.first_tokens[row : row + 2])
    found = []
    for index, ((hidden, named), (_, options)) in enumerate(zip(recorded, right, strict=True)):
        if HIDDEN in named:
            options = {**options, HIDDEN: named[HIDDEN]}
        query, keys, values = taken(runner.model.get_decoder().layers[index], hidden, options)
        found.append(LayerInputs(index, query[first:last], keys[first:last], values[first:last]))
    return found


def taken(
    layer: Any, hidden: tuple[Any, ...], options: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed query, keys and values of one layer."""
    taking = _Taking()
    try:
        with torch.no_grad(), attending(taking):
            layer(*hidden, **options)
    except _Taken:
        pass
    if taking.given is None:
        raise ValueError("the layer ran without attention")
    return taking.given
