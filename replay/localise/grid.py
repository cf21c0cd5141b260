"""Does an output lie on a grid that is coarser than its dtype's: was it rounded with a quantisation scale?"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from checkengine.replay.judge.bound import bounded
from checkengine.replay.op_call import OpCall

FEWEST = 24
"""Numbers that lie on a grid by chance are fewer."""
PARTS = 8
"""The smallest distance between two numbers is so many steps of the grid at most."""
OFF = 1e-3
"""Of a step: a product with a scale is rounded once more."""
COARSE = 16.0
"""Times what rounding can do: a finer grid tells nothing."""


@dataclass(frozen=True, slots=True)
class Grid:
    step: float

    def words(self) -> str:
        return (
            f"every number is the right one, rounded to multiples of {self.step:.6g}: a quantisation scale too coarse"
        )


def fit_grid(call: OpCall, output: torch.Tensor, heads: tuple[int, ...]) -> Grid | None:
    """The step of which all numbers of these heads are multiples, each within half a step of the right one."""
    right = bounded(call)
    chosen = list(heads) or list(range(output.shape[1]))
    found = output[right.tokens][:, chosen].double()
    exact, limit = right.exact[:, chosen], right.certain[:, chosen]
    levels = torch.unique(found)
    if found.numel() < FEWEST or len(levels) < 3 or not bool(torch.isfinite(found).all()):
        return None
    gaps = levels[1:] - levels[:-1]
    apart = gaps[gaps > COARSE * float(limit.median())]
    if not len(apart):
        return None
    for part in range(1, PARTS + 1):
        step = refined(float(apart.min()) / part, found)
        on_grid = bool(((found / step).round() * step - found).abs().max() <= OFF * step)
        if on_grid and bool(((found - exact).abs() <= step * (0.5 + OFF) + limit).all()):
            return Grid(step)
    return None


def refined(step: float, found: torch.Tensor) -> float:
    """The step that fits all numbers best, from one that was read off two of them."""
    counts = (found / step).round()
    total = float(counts.square().sum())
    return float((counts * found).sum()) / total if total else step
