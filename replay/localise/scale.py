"""Which factor explains an output that no rounding explains?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from checkengine.replay.judge.bound import bounded, gathered, visible
from checkengine.replay.localise.page_scale import SCORES, VALUES, page_factors, scaled_pages
from checkengine.replay.op_call import OpCall

NEAR_ONE = np.geomspace(1e-3, 0.09, 9)
GRID = np.unique(np.concatenate([-NEAR_ONE, np.linspace(-3.0, 3.0, 61).round(9), NEAR_ONE]))
"""Natural logarithms of the factors that are tried first: none lies further from one of them than a third of its own
distance from zero."""
NO_FACTOR = 1e-4
"""A factor this near to 1 is none."""
NAMED = 4
"""Pages in words."""
MOST_PAGES = 64
KINDS = (SCORES, VALUES, f"{SCORES} and {VALUES}")
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class ScaleFit:
    what: str
    """ "scores", "values", or "scores and values"."""
    factor: float
    """Of the first page, where there are several."""
    pages: tuple[int, ...] = ()
    """Indices in the row's table; empty: all of them, by one factor."""
    each: bool = False
    """Pages have factors of their own."""

    def words(self) -> str:
        if not self.pages:
            return f"{self.what} times {self.factor:.6g} explain it within rounding"
        named = ", ".join(map(str, self.pages[:NAMED])) + (", …" if len(self.pages) > NAMED else "")
        where = f"page {named}" if len(self.pages) == 1 else f"pages {named}"
        own = f" and a factor for each, first {self.factor:.6g}," if self.each else f" times {self.factor:.6g}"
        return f"{self.what} of {where}{own} explain it within rounding"


def fit_scale(call: OpCall, output: torch.Tensor) -> ScaleFit | None:
    """The simplest factors on scores or values with which the call's output lies within the bound: one for all, one
    for a page, else one for each page. `output`: (tokens, heads, value_dim)."""
    for what in KINDS:
        if (factor := search(call, output, what, None)) is not None:
            return ScaleFit(what, factor)
    pages = -(-call.length // call.block_size)
    for what in KINDS:
        for page in range(min(pages, MOST_PAGES)):
            if (factor := search(call, output, what, page)) is not None:
                return ScaleFit(what, factor, (page,))
    for what in KINDS:
        if (factors := page_factors(call, output, what)) is not None:
            return of_pages(what, factors)
    return None


def of_pages(what: str, factors: torch.Tensor) -> ScaleFit:
    """`factors`: one for each page."""
    off = (factors - 1).abs() > NO_FACTOR
    pages = off.nonzero().flatten().tolist()
    among = factors[off]
    return ScaleFit(what, float(among[0]), tuple(pages), bool((among - among[0]).abs().max() > NO_FACTOR))


def search(call: OpCall, output: torch.Tensor, what: str, page: int | None) -> float | None:
    loss = loss_of(call, output, what, page)
    losses = [loss(float(step)) for step in GRID]
    best = int(np.argmin(losses))
    # The right factor lies within half a step: what is left of the distance there is a small part.
    if not losses[best] < loss(0.0) / 4:
        return None
    near = GRID[max(0, best - 1)], GRID[min(len(GRID) - 1, best + 1)]
    factor = math.exp(golden(loss, float(near[0]), float(near[1])))
    scaled = with_factor(call, what, page, factor)
    return factor if float(bounded(scaled).ratio(output).max()) <= 1 else None


def loss_of(call: OpCall, output: torch.Tensor, what: str, page: int | None) -> Callable[[float], float]:
    """Squared distance to the output as a function of the factor's logarithm; scores are made once."""
    tokens = torch.arange(len(call.query))[-8:]
    query = call.query[tokens].double().transpose(0, 1)
    keys, values = gathered(call, call.keys), gathered(call, call.values)
    scores, seen = query @ keys.transpose(1, 2) * call.scaling, visible(call, tokens)
    place = torch.arange(call.length) // call.block_size == page if page is not None else torch.ones(call.length) > 0
    wanted = output[tokens].double().transpose(0, 1)

    def loss(step: float) -> float:
        factor = math.exp(step)
        of_scores = torch.where(place, factor, 1.0).double() if SCORES in what else 1.0
        of_values = torch.where(place, factor, 1.0).double().unsqueeze(1) if VALUES in what else 1.0
        logits = scores * of_scores
        logits = torch.tanh(logits / call.softcap) * call.softcap if call.softcap else logits
        logits = logits.masked_fill(~seen, -torch.inf)
        if call.sinks is not None:
            sink = call.sinks.double().view(-1, 1, 1).expand(-1, len(tokens), 1)
            weights = torch.softmax(torch.cat((logits, sink), -1), -1)[..., :-1]
        else:
            weights = torch.softmax(logits, -1)
        return float((weights @ (values * of_values) - wanted).square().sum())

    return loss


def golden(loss: Callable[[float], float], low: float, high: float, rounds: int = 70) -> float:
    """Golden-section search of a minimum."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(rounds):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = loss(right)
    return (low + high) / 2


def with_factor(call: OpCall, what: str, page: int | None, factor: float) -> OpCall:
    factors = torch.ones(-(-call.length // call.block_size), dtype=torch.float64)
    factors[slice(None) if page is None else page] = factor
    return scaled_pages(call, what, factors)
