"""What one pass over a batch of raw logits tells, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Level = Literal["screen", "full"]


@dataclass(frozen=True, slots=True)
class RowStats:
    """Statistics of raw logits of shape (rows, vocabulary); every array has shape (rows,).

    `screen` fills `nonfinite`, `invalid`, `maximum` and `minimum`; the other fields are None.
    Extrema ignore NaN. An all-NaN row has maximum -inf, minimum +inf, argmax -1.
    Counts, extrema, argmax and fingerprint are equal on every backend; logsumexp and
    entropy (nats) agree within 1e-5. logsumexp and entropy are NaN where a row holds NaN or +inf.
    Of a shard of the vocabulary the columns are numbered in the whole vocabulary; `merge` joins shards.
    """

    level: Level
    nonfinite: NDArray[np.bool_]
    """True where the row holds NaN, +inf or -inf."""
    maximum: NDArray[np.float32]
    minimum: NDArray[np.float32]
    nan: NDArray[np.int32] | None = None
    positive_infinite: NDArray[np.int32] | None = None
    negative_infinite: NDArray[np.int32] | None = None
    argmax: NDArray[np.int64] | None = None
    """Lowest index among equal maxima."""
    logsumexp: NDArray[np.float32] | None = None
    entropy: NDArray[np.float32] | None = None
    margin: NDArray[np.float32] | None = None
    """Largest minus second largest logit; 0 when tied, NaN in an all-NaN row, +inf where there is no second."""
    fingerprint: NDArray[np.uint64] | None = None
    """Position-keyed, independent of the order of reduction; NaN payloads are made canonical."""
    invalid: NDArray[np.bool_] | None = None
    """True where the row holds NaN or +inf: what no mask explains. None in statistics from elsewhere."""
    runner_up: NDArray[np.float32] | None = None
    """Second largest logit, equal to the maximum when tied; -inf where there is none."""
    log_total: NDArray[np.float32] | None = None
    """logsumexp minus maximum, 0 to ln(vocabulary): what `merge` needs of it, free of the maximum's rounding."""

    def __len__(self) -> int:
        return len(self.maximum)
