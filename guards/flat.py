"""The tokens of a step as one array, made once for all guards that read them as such."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

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

    one_each: bool
    """Every row has exactly one token, so that `tokens` is row-aligned."""

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
    flat = _one_each(step) or _several(step)
    _last = (step, flat)
    return flat


def _one_each(step: StepView) -> FlatTokens | None:
    """The common case in a third of the time."""
    rows = len(step.tokens)
    try:
        tokens = np.fromiter([token for (token,) in step.tokens], np.int64, rows)
    except (ValueError, OverflowError):
        return None
    return FlatTokens(tokens, np.arange(1, rows + 1), True)


def _several(step: StepView) -> FlatTokens:
    ends = np.fromiter(accumulate(map(len, step.tokens)), np.int64, len(step.tokens))
    tokens = [_tame(token) for row in step.tokens for token in row]
    return FlatTokens(np.array(tokens, np.int64), ends, bool((np.diff(ends, prepend=0) == 1).all()))


def _tame(token: int) -> int:
    return token if -MOST_TOKEN <= token < MOST_TOKEN else WILD
