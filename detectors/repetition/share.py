"""The share of a text that was there before, offline."""

from __future__ import annotations

from collections.abc import Sequence


def seq_rep_n(tokens: Sequence[int], n: int = 4) -> float:
    """Share of n-grams that occurred before, 0 … 1 (Welleck et al. 2019, arXiv 1908.04319)."""
    total = len(tokens) - n + 1
    if total <= 0:
        return 0.0
    return 1.0 - len({tuple(tokens[i : i + n]) for i in range(total)}) / total
