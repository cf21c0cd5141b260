"""Loops made to order: exact ones of random tokens, near-copies of real prose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
HEAD = 40
"""Tokens before the loop."""
COPIES = 8


def exact_loop(draw: np.random.Generator, period: int) -> tuple[Tokens, int]:
    """Distinct tokens, then three or more copies; with the index of the second copy's first token."""
    tokens = draw.permutation(49_000)[: HEAD + period].astype(np.int32)
    copies = max(3, 48 // period + 2)
    return np.concatenate((tokens[:HEAD], np.tile(tokens[HEAD:], copies))), HEAD + period


def near_loop(draw: np.random.Generator, prose: Tokens, kind: str, period: int, rate: float) -> tuple[Tokens, int]:
    """Copies of a stretch of prose, with the index of the second copy's first token.

    counter: one token counts up. drifting: each copy changes a share `rate` of the copy before it. substituted: each
    copy changes a share of the first one. shifted: each copy is the first one with half that share of its tokens left
    out and as many put in.
    """
    pieces = [piece(draw, prose, HEAD), piece(draw, prose, period)]
    unit = pieces[1]
    for copy in range(1, COPIES):
        changed = unit.copy()
        if kind == "shifted":
            changed = shifted(draw, prose, unit, rate / 2)
        elif kind == "counter":
            changed[period // 3] = 20_000 + copy
        else:
            struck = draw.random(period) < rate
            changed[struck] = draw.choice(prose, int(struck.sum()))
        pieces.append(changed)
        unit = changed if kind == "drifting" else unit
    return np.concatenate(pieces), HEAD + period


def shifted(draw: np.random.Generator, prose: Tokens, unit: Tokens, rate: float) -> Tokens:
    left = unit[draw.random(len(unit)) >= rate]
    places = np.flatnonzero(draw.random(len(left)) < rate)
    return np.insert(left, places, draw.choice(prose, len(places)))


def piece(draw: np.random.Generator, prose: Tokens, length: int) -> Tokens:
    first = int(draw.integers(0, len(prose) - length))
    return prose[first : first + length].copy()
