"""An attention kernel that writes NaN for one row under a rare condition."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass


class NanAttention(Fault):
    """Writes NaN into the attention output of a decode row whose length is `remainder` modulo `modulus`.

    From that layer on the hidden state is NaN, so the keys and values of the layers above are NaN as well:
    every later step of the sequence reads them, and without guards it repeats one token for ever.
    """

    name: ClassVar[str] = "nan_attention"
    models: ClassVar[str] = (
        "NaN from attention at particular lengths: Dao-AILab/flash-attention#1745, vllm-project/vllm#47305"
    )
    fault_class: ClassVar[FaultClass] = FaultClass.NON_FINITE

    def __init__(self, modulus: int = 32, remainder: int = 1, layer: int = 12, minimum_length: int = 0) -> None:
        self.modulus, self.remainder, self.layer, self.minimum_length = modulus, remainder, layer, minimum_length

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        if layer != self.layer:
            return
        hit = (lengths % self.modulus == self.remainder) & (query_lengths == 1) & (lengths >= self.minimum_length)
        if hit.any():
            last = np.cumsum(query_lengths) - 1
            output[torch.from_numpy(last[hit])] = float("nan")
