"""A hash of each row's output of each op, taken while a step runs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors.logits.fingerprint import column_keys
from checkengine.replay.executor import OpHash
from checkengine.replay.op_tree import element_terms


class OpHashes:
    """An observer of ModelRunner.forward. Equal bits give equal hashes; NaN payloads are one and the same.

    The hash is the fingerprint's own sum of products with odd 64-bit keys, keyed by the element's place in the row's
    tokens, so that it does not depend on the batch's other rows.
    """

    def __init__(self, first_tokens: NDArray[np.int32]) -> None:
        self.entries: list[OpHash] = []
        self._first_tokens = first_tokens.tolist()
        self._thread = threading.get_ident()

    def __call__(self, op: str, layer: int, output: torch.Tensor) -> None:
        if threading.get_ident() != self._thread:
            return  # A live engine runs the same weights in its own thread, and meets the hooks of this run.
        finite = torch.isfinite(output).flatten(1).all(1).numpy()
        products = token_hashes(output)
        for row, (first, last) in enumerate(zip(self._first_tokens, self._first_tokens[1:], strict=False)):
            keys = column_keys(last - first)
            value = int((products[first:last] * keys).sum(dtype=np.uint64))
            self.entries.append(OpHash(op, layer, row, value, bool(finite[first:last].all())))


def token_hashes(output: torch.Tensor) -> NDArray[Any]:
    """Shape (tokens,), uint64."""
    hashes: NDArray[Any] = element_terms(output).sum(axis=1, dtype=np.uint64)
    return hashes


class OpOutput:
    """An observer that keeps one row's output of one op of one layer."""

    def __init__(self, op: str, layer: int, first: int, last: int) -> None:
        self.kept: torch.Tensor | None = None
        self._wanted, self._tokens = (op, layer), slice(first, last)
        self._thread = threading.get_ident()

    def __call__(self, op: str, layer: int, output: torch.Tensor) -> None:
        if (op, layer) == self._wanted and threading.get_ident() == self._thread:
            self.kept = output[self._tokens].clone()
