"""Runs one packed batch through the model on one KV memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.engine_shim.engine.attention import attending
from checkengine.engine_shim.engine.batch import PackedBatch
from checkengine.engine_shim.engine.kernels import KERNELS, AttentionCall, Rows
from checkengine.engine_shim.engine.kv_memory import KVMemory
from checkengine.engine_shim.engine.planted import Told, attend, write
from checkengine.engine_shim.faults.fault import Fault

Ints = NDArray[np.int32]

Observer = Callable[[str, int, torch.Tensor], None]
"""(op, layer, output of shape (tokens, …)): "attention" and "hidden" of every layer, in the order in which they run."""

CallObserver = Callable[[int, AttentionCall, torch.Tensor], None]
"""(layer, what the attention kernel was given, its output), after the layer's keys and values were written."""


class ModelRunner:
    """Owns nothing but what it is given; several runners may share the weights, each in its own thread.

    The `reference` kernel stands for "no defect of ours": planted faults act on production kernels only.
    """

    def __init__(self, model: Any, memory: KVMemory, kernel: str = "paged", faults: Sequence[Fault] = ()) -> None:
        self.model = model
        self.memory = memory
        self.kernel = kernel
        self.faults = tuple(faults)

    def forward(
        self,
        batch: PackedBatch,
        *,
        kernel: str | None = None,
        observer: Observer | None = None,
        calls: CallObserver | None = None,
    ) -> torch.Tensor:
        """Raw logits, float32 (float64 for a float64 model), shape (sampling rows, vocabulary). Writes the batch's KV.

        A batch in which no row samples gives shape (0, vocabulary).
        """
        kernel = kernel or self.kernel
        faults = () if kernel == "reference" else self.faults
        attention = _StepAttention(self.memory, batch, kernel, faults, observer, calls)
        hooks = _watch_hidden(self.model, observer) if observer else []
        sampling = batch.sampling_positions if len(batch.sampling_positions) else np.zeros(1, np.int64)
        positions = batch.positions
        for fault in faults:
            positions = fault.positions(positions, batch.starts, batch.query_lengths)
        try:
            with torch.no_grad(), attending(attention):
                output = self.model(
                    input_ids=torch.from_numpy(batch.token_ids.astype(np.int64)).unsqueeze(0),
                    position_ids=torch.from_numpy(positions.astype(np.int64)).unsqueeze(0),
                    use_cache=False,
                    logits_to_keep=torch.from_numpy(sampling),
                )
                logits = _at_least_float32(output.logits[0])[: len(batch.sampling_positions)]
                for fault in faults:
                    fault.logits(logits, batch.lengths[batch.samples])
        finally:
            for hook in hooks:
                hook.remove()
        return logits


class _StepAttention:
    """The attention of one forward."""

    def __init__(
        self,
        memory: KVMemory,
        batch: PackedBatch,
        kernel: str,
        faults: Sequence[Fault],
        observer: Observer | None,
        calls: CallObserver | None,
    ) -> None:
        self.memory = memory
        self.batch = batch
        self.kernel = KERNELS[kernel]
        self.faults = faults
        self.observer = observer
        self.calls = calls
        located = memory.locate(batch.tables)
        self.places = memory.places(batch.slots)
        self.rows = Rows.of(located, batch.lengths, batch.query_lengths, batch.first_tokens)
        self.told = Told(batch.tables, batch.lengths, batch.query_lengths, batch.first_tokens, memory.block_size)

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
    ) -> torch.Tensor:
        layer: int = module.layer_idx
        if self.faults:
            write(self.faults, self.memory, layer, self.batch.slots, (key, value), self.told)
        else:
            self.memory.write(layer, self.places, key, value)
        call = self._call(layer, query, options)
        output = self._output(layer, call)
        if self.observer:
            self.observer("attention", layer, output)
        if self.calls:
            self.calls(layer, call, output)
        return output

    def _output(self, layer: int, call: AttentionCall) -> torch.Tensor:
        if not self.faults:
            return self.kernel(call, self.rows)
        rows = self.told.rows(self.faults, layer, self.memory.nearest) or self.rows
        return attend(self.faults, self.kernel, layer, call, rows, self.told)

    def _call(self, layer: int, query: torch.Tensor, options: dict[str, Any]) -> AttentionCall:
        return AttentionCall(
            query=query,
            memory=self.memory.layers[layer],
            scaling=options.get("scaling") or query.shape[-1] ** -0.5,
            window=options.get("sliding_window"),
            softcap=options.get("softcap"),
            sinks=options.get("s_aux"),
        )


def _watch_hidden(model: Any, observer: Observer) -> list[Any]:
    """Hooks that show every decoder layer's output."""

    def watch(layer: int) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            observer("hidden", layer, hidden[0])

        return hook

    layers = model.get_decoder().layers
    return [layer.register_forward_hook(watch(index)) for index, layer in enumerate(layers)]


def _at_least_float32(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
