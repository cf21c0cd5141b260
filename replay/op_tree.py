"""A hash for every range of one op's output: where two runs of it first differ, in ⌈log₂ elements⌉ comparisons.

Leaves are the elements' terms of the op's own hash: keyed by position, and summed modulo 2⁶⁴, so that no order of
reduction matters and the hash of a range is what its parts add up to. The root is the op's hash as recorded: whoever
holds the output behind a recorded hash can be asked for halves, and sends 8 bytes for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from checkengine.detectors.logits.fingerprint import column_keys

Ask = Callable[[int, int], int]
"""Hash of the elements first … last - 1."""
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def element_terms(output: torch.Tensor) -> NDArray[np.uint64]:
    """Shape (tokens, elements of a token): what each element adds to its token's hash. NaN payloads are one and the
    same; each term is a bijection of its element's bits."""
    packed = output.detach().reshape(len(output), -1)
    packed = torch.where(torch.isnan(packed), torch.nan, packed)
    bits = packed.contiguous().view(_WORDS[packed.element_size()]).numpy().astype(np.int64).view(np.uint64)
    products = (bits + np.uint64(1)) * column_keys(bits.shape[1])
    terms: NDArray[np.uint64] = products ^ (products >> np.uint64(32))
    return terms


class OpTree:
    """Of one row's output, shape (tokens, …); elements are numbered through its tokens."""

    def __init__(self, output: torch.Tensor) -> None:
        terms = element_terms(output) * column_keys(len(output))[:, None]
        self.elements = terms.size
        self._sums: NDArray[np.uint64] = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])

    @property
    def root(self) -> int:
        """The op's hash."""
        return self.range(0, self.elements)

    def range(self, first: int, last: int) -> int:
        """Hash of the elements first … last - 1."""
        if not 0 <= first <= last <= self.elements:
            raise ValueError(f"elements {first} to {last} of {self.elements} are no range")
        # Numbers modulo 2^64: a difference may wrap.
        return int((int(self._sums[last]) - int(self._sums[first])) % 2**64)


@dataclass(frozen=True, slots=True)
class Divergence:
    first: int
    """The first element that differs."""
    last: int
    """The last one."""
    comparisons: int
    """Of the first; as many again found the last."""


def diverging(one: Ask, other: Ask, elements: int) -> Divergence | None:
    """None where the roots are equal. ⌈log₂ elements⌉ comparisons for each end, beside that of the roots."""
    if one(0, elements) == other(0, elements):
        return None
    first, comparisons = end_of(one, other, elements, front=True)
    last, _ = end_of(one, other, elements, front=False)
    return Divergence(first, last, comparisons)


def end_of(one: Ask, other: Ask, elements: int, *, front: bool) -> tuple[int, int]:
    """The first or last element that differs, of ranges that do, and the comparisons made."""
    low, high, comparisons = 0, elements, 0
    while high - low > 1:
        middle = (low + high) // 2
        near = (low, middle) if front else (middle, high)
        comparisons += 1
        if one(*near) != other(*near):
            low, high = near
        else:
            low, high = (middle, high) if front else (low, middle)
    return low, comparisons
