"""Rows of one batch whose results depend on each other."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from checkengine.engine_shim.faults.fault import Fault, Ints, last_tokens, of_layer
from checkengine.replay.judge.fault_class import FaultClass


class SwappedRows(Fault):
    """In a batch of an odd number of decode rows, which a graph pads to an even one, the last two get each other's
    output."""

    name: ClassVar[str] = "swapped_rows"
    models: ClassVar[str] = (
        "a copy lands in the order of another step's rows: vllm-project/vllm#53919; results swapped between calls: "
        "huggingface/transformers#45943"
    )
    fault_class: ClassVar[FaultClass] = FaultClass.ROWS

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = tuple(layers)

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        decode = np.flatnonzero(query_lengths == 1)
        if of_layer(layer, self.layers) and len(decode) > 1 and len(decode) % 2:
            last = torch.from_numpy(last_tokens(query_lengths)[decode[-2:]])
            output[last] = output[last.flip(0)]


class SharedScale(Fault):
    """Outputs are rounded to eight bits with one scale for the whole batch, so that one row's largest number costs the
    others theirs."""

    name: ClassVar[str] = "shared_scale"
    models: ClassVar[str] = (
        "one largest number for the tensor, padding rows among it, spreads to all rows: vllm-project/vllm#37442; "
        "one bad row reaches its neighbours: vllm-project/vllm#40047"
    )
    fault_class: ClassVar[FaultClass] = FaultClass.ROWS

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = tuple(layers)

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        if of_layer(layer, self.layers):
            scale = output.abs().amax().clamp(min=1e-6) / 127
            output.copy_((output / scale).round() * scale)
