"""Embedding vectors that carry nothing: not finite, of no length, or alike in all components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EQUAL_WITHIN = 2.0**-16
"""Spread of the components, relative to the largest: below it a vector is constant. Real ones spread by more than 1."""


@dataclass(frozen=True, slots=True)
class EmbeddingReading:
    """Of vectors (rows, dimensions), arrays of shape (rows,). The first that holds excludes those behind it."""

    nonfinite: NDArray[np.int64]
    """Components that are NaN or infinite."""
    zero: NDArray[np.bool_]
    """The norm is 0, or underflows when it is squared in the vector's own precision."""
    constant: NDArray[np.bool_]
    """All components are alike; a vector of one dimension is not judged."""
    norm: NDArray[np.float64]


def read_embeddings(vectors: NDArray[np.floating[Any]]) -> EmbeddingReading:
    """float16, float32 or float64. ValueError for another shape or dtype."""
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
        raise ValueError(f"embeddings must be floats of shape (rows, dimensions), got {vectors.dtype} {vectors.shape}")
    wide = vectors.astype(np.float64, copy=False)
    nonfinite = np.count_nonzero(~np.isfinite(wide), axis=1)
    finite = nonfinite == 0
    with np.errstate(invalid="ignore", over="ignore"):
        norm = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        # A client that normalises in this precision divides by zero.
        zero = finite & (norm**2 < np.finfo(vectors.dtype).tiny)
        highest, lowest = wide.max(1, initial=-np.inf), wide.min(1, initial=np.inf)
        alike = highest - lowest <= EQUAL_WITHIN * np.maximum(np.abs(highest), np.abs(lowest))
    constant = finite & ~zero & alike & (vectors.shape[1] > 1)
    return EmbeddingReading(nonfinite, zero, constant, norm)
