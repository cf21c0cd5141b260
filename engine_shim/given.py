"""What an engine hands to the shim, read so that nonsense is found in the part that reads it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def version_of(logits: object) -> int:
    """Counts what torch wrote into a tensor in place; what numpy wrote into its memory shows in no count."""
    try:
        return int(logits._version)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        # Tensors made in inference mode have no count.
        return -1


def length_of(rows: object) -> int:
    """What has no length counts as a row, so that it fails inside the part that reads it."""
    try:
        return len(rows)  # type: ignore[arg-type]
    except TypeError:
        return 1


def as_token_ids(tokens: object) -> NDArray[np.int32]:
    """Integers too wide for a token id become the nearest id that fits: as impossible as before, where a plain cast
    could make a possible one of them, and a guard that overflows would be off for everyone."""
    ids = np.asarray(tokens)
    if ids.dtype == np.int32:
        return ids
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"token ids are integers, not {ids.dtype}")
    bounds = np.iinfo(np.int32)
    clipped: NDArray[np.int32] = np.clip(ids, bounds.min, bounds.max).astype(np.int32)
    return clipped
