"""Block tables as a fault changes them: always a copy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from checkengine.engine_shim.faults.fault import Ints


def with_next_page(tables: Ints, lengths: Ints, hit: NDArray[np.bool_], block_size: int) -> Ints:
    """Rows that are hit and whose last page is full get the page behind it in memory, whoever owns that."""
    wide = np.full((len(tables), tables.shape[1] + 1), -1, np.int32)
    wide[:, :-1] = tables
    for row in np.flatnonzero(hit & (lengths % block_size == 0)):
        pages = lengths[row] // block_size
        wide[row, pages] = wide[row, pages - 1] + 1
    return wide


def with_page(tables: Ints, rows: NDArray[np.int64], pages: NDArray[np.int64], blocks: NDArray[np.int32]) -> Ints:
    """Page `pages[i]` of row `rows[i]` read from block `blocks[i]`."""
    changed = tables.copy()
    changed[rows, pages] = blocks
    return changed
