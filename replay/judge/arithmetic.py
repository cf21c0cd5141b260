"""How a kernel rounds: what an error bound needs to know of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

LIKELY_FAILURE = 1e-9
"""Probability that the likely bound fails for any element of a judgement, if the model holds: rounding errors are
independent with mean zero (Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci.
Comput. 41, 2019), and the order of a sum has nothing to do with its terms."""

_STORED = {
    torch.float64: (2.0**-53, 2.0**-1022),
    torch.float32: (2.0**-24, 2.0**-126),
    torch.bfloat16: (2.0**-8, 2.0**-126),
    torch.float16: (2.0**-11, 2.0**-25),
}
"""Unit roundoff, and the most that a number too small for the dtype can lose."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Sums are accumulated with unit roundoff `accumulate`; whatever goes from one op to the next (scaled query,
    scores, weights, output) may be stored with unit roundoff `store`."""

    accumulate: float
    store: float
    tiny: float
    """The most that a stored number loses by being too small."""
    elementary: float = 8.0
    """Relative error of exp and tanh, in units of `accumulate`."""
    chunk: int = 16
    """Slots in the smallest chunk after which running maximum and sums may be scaled again."""


def arithmetic_of(dtype: torch.dtype) -> Arithmetic:
    """What every kernel that we know does for inputs of this dtype: half types are accumulated in float32. A kernel
    that accumulates in half precision, or multiplies in TF32, needs an Arithmetic of its own."""
    store, tiny = _STORED[dtype]
    return Arithmetic(min(store, 2.0**-24), store, tiny)


def certain(terms: int, unit: float) -> float:
    """γ_n: n rounding errors at their worst (Higham, Accuracy and Stability, lemma 3.1); infinite where n·u >= 1."""
    product = terms * unit
    return product / (1 - product) if product < 1 else math.inf


def deviations(elements: float) -> float:
    """λ of Hoeffding's inequality: |Σ c δ| <= λ·u·√(Σ c²) for all of `elements` sums but for LIKELY_FAILURE."""
    return math.sqrt(2 * math.log(2 * max(1.0, elements) / LIKELY_FAILURE))
