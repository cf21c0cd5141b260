"""Faults that make numbers that are none, and one that hides them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from checkengine.engine_shim.faults.fault import Fault, Ints
from checkengine.replay.judge.fault_class import FaultClass


@dataclass(frozen=True)
class MaskedWindowNan(Fault):
    """In a step that prefills and decodes at once, the last head of every decode row shorter than `window` is NaN: its
    whole window is masked, and so softmax divides zero by zero."""

    window: int = 32
    layer: int = 0

    name: ClassVar[str] = "masked_window_nan"
    fault_class: ClassVar[FaultClass] = FaultClass.NON_FINITE
    models: ClassVar[str] = "whole window masked for short rows of a mixed batch: huggingface/transformers PR #45511"

    def attention_output(self, layer: int, output: torch.Tensor, lengths: Ints, query_lengths: Ints) -> None:
        hit = (query_lengths == 1) & (lengths < self.window)
        if layer == self.layer and hit.any() and (query_lengths > 1).any():
            output[torch.from_numpy((np.cumsum(query_lengths) - 1)[hit]), -1] = torch.nan


@dataclass(frozen=True)
class SanitisedRow(Fault):
    """The logits of a row whose length is `remainder` modulo `modulus` were NaN, and a sanitiser made them one
    constant: the token is drawn from all of the vocabulary alike, and nothing is NaN any more."""

    modulus: int = 64
    remainder: int = 1
    minimum_length: int = 0

    name: ClassVar[str] = "sanitised_row"
    fault_class: ClassVar[FaultClass] = FaultClass.NON_FINITE
    models: ClassVar[str] = "NaN row sanitised to a constant: sgl-project/sglang#33187; at 1 mod 64: PR #29633"

    def logits(self, logits: torch.Tensor, lengths: Ints) -> None:
        hit = (lengths % self.modulus == self.remainder) & (lengths >= self.minimum_length)
        logits[torch.from_numpy(hit)] = 0.0
