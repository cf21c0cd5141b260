"""The tokens of a step as one array, made once for all guards that read them as such."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.step import StepView

MOST_TOKEN = 1 << 31
WILD = -1
"""Stands for a number that no vocabulary has and that an array of int64 may not hold."""


@dataclass(frozen=True, slots=True)
class FlatTokens:
    """Row i's tokens are `tokens[starts[i]:ends[i]]`."""

    tokens: NDArray[np.int64]
    """Shape (tokens of the step,)."""
    ends: NDArray[np.int64]
    """Shape (rows,)."""

    @property
    def one_each(self) -> bool:
        """Every row has exactly one token, so that `tokens` is row-aligned."""
        return len(self.tokens) == len(self.ends) and bool((np.diff(self.ends, prepend=0) == 1).all())

    def place(self, index: int) -> tuple[int, int]:
        """Row of a token of the array, and its offset within the row."""
        row = int(np.searchsorted(self.ends, index, side="right"))
        return row, index - (int(self.ends[row - 1]) if row else 0)


_last: tuple[StepView, FlatTokens] | None = None
"""Of the step that was asked for last: guards come one after another with the same one."""


def flat_tokens(step: StepView) -> FlatTokens:
    global _last
    last = _last
    if last is not None and last[0] is step:
        return last[1]
    rows = len(step.tokens)
    ends = np.fromiter(accumulate(map(len, step.tokens)), np.int64, rows)
    flat = FlatTokens(_array(chain.from_iterable(step.tokens), int(ends[-1]) if rows else 0, step), ends)
    _last = (step, flat)
    return flat


def _array(tokens: Iterable[int], count: int, step: StepView) -> NDArray[np.int64]:
    try:
        return np.fromiter(tokens, np.int64, count)
    except OverflowError:
        tame = (token if -MOST_TOKEN <= token < MOST_TOKEN else WILD for row in step.tokens for token in row)
        return np.fromiter(tame, np.int64, count)
