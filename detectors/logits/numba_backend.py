"""Row statistics in CPU memory, compiled by numba."""

from __future__ import annotations

import torch

from checkengine.detectors.logits import torch_backend
from checkengine.detectors.logits.stats import Level, RowStats


def row_stats(logits: torch.Tensor, level: Level) -> RowStats:
    return torch_backend.row_stats(logits, level)
