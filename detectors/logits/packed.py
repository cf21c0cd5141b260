"""All statistics of a batch in one block of memory, so that one copy brings them from a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from checkengine.detectors.logits.stats import Level, RowStats

WIDE = ("argmax", "fingerprint")
"""int64; the fingerprint's bits are to be read unsigned."""
FLOATS = ("maximum", "minimum", "logsumexp", "entropy", "margin", "runner_up", "log_total")
"""float32."""
COUNTS = ("nan", "positive_infinite", "negative_infinite")
"""int32; level `screen` needs no more of each than whether it is 0."""


class PackedStats:
    """Block of `56 x rows` bytes: the int64 fields, then float32, then int32, each of shape (rows,)."""

    __slots__ = ("block", "columns", "counts", "first_column", "floats", "level", "rows", "wide")

    def __init__(self, block: torch.Tensor, rows: int, columns: int, level: Level, first_column: int) -> None:
        wide, floats = 8 * len(WIDE) * rows, 4 * len(FLOATS) * rows
        self.block = block
        self.rows, self.columns, self.level, self.first_column = rows, columns, level, first_column
        self.wide = block[:wide].view(torch.int64).view(len(WIDE), rows)
        self.floats = block[wide : wide + floats].view(torch.float32).view(len(FLOATS), rows)
        self.counts = block[wide + floats :].view(torch.int32).view(len(COUNTS), rows)

    @classmethod
    def empty(cls, logits: torch.Tensor, level: Level, first_column: int) -> PackedStats:
        """On the device of the logits (rows, columns)."""
        rows, columns = logits.shape
        size = rows * (8 * len(WIDE) + 4 * (len(FLOATS) + len(COUNTS)))
        return cls(torch.empty(size, dtype=torch.uint8, device=logits.device), rows, columns, level, first_column)

    def row_stats(self) -> RowStats:
        """Of a block in CPU memory; columns are numbered in the whole vocabulary."""
        floats: dict[str, Any] = dict(zip(FLOATS, self.floats.numpy(), strict=True))
        counts = self.counts.numpy()
        nan, positive = counts[0], counts[1]
        flags: dict[str, Any] = {"nonfinite": counts.any(axis=0), "invalid": (nan > 0) | (positive > 0)}
        # Adding zero turns -0.0 into +0.0: which of two equal zeros wins is the backend's accident.
        maximum, minimum = floats.pop("maximum") + np.float32(0), floats.pop("minimum") + np.float32(0)
        if self.level == "screen":
            return RowStats("screen", maximum=maximum, minimum=minimum, **flags)
        floats["runner_up"] = floats["runner_up"] + np.float32(0)
        argmax, fingerprint = self.wide.numpy()
        argmax = np.where(nan == self.columns, -1, argmax + self.first_column)
        return RowStats(
            "full",
            maximum=maximum,
            minimum=minimum,
            **flags,
            **dict(zip(COUNTS, counts, strict=True)),
            **floats,
            argmax=argmax,
            fingerprint=fingerprint.view(np.uint64),
        )
