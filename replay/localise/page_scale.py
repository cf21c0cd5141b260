"""A factor for each page of a row, from a call's inputs and its wrong output.

The output has more numbers than the row has pages, so that the factors follow from it: on values by one linear least
squares, on scores by Gauss and Newton. What fits is believed only where the call with these factors lies within the
rounding bound in every number.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from checkengine.replay.judge.bound import bounded, gathered, visible
from checkengine.replay.op_call import OpCall

SCORES, VALUES = "scores", "values"
TOKENS = 8
"""Of the call's last ones, that are looked at."""
EQUATIONS = 4
"""Numbers for each unknown."""
ROUNDS = 30
STEP = 1e-6
"""Of a logarithm, for derivatives."""
MOST_PAGES = 64


def page_factors(call: OpCall, output: torch.Tensor, what: str) -> torch.Tensor | None:
    """Shape (pages,), float64; None where no factors explain the output, or it has too few numbers to tell them."""
    pages = -(-call.length // call.block_size)
    model = _Model(call, output, what, pages)
    if not 1 < pages <= MOST_PAGES or model.wanted.numel() < EQUATIONS * pages:
        return None
    factors = model.solved()
    if factors is None or bool((bounded(scaled_pages(call, what, factors)).ratio(output) > 1).any()):
        return None
    return factors


def scaled_pages(call: OpCall, what: str, factors: torch.Tensor) -> OpCall:
    """The call in float64 with the keys, values or both of each page times its factor. A block that stands in the
    table twice is scaled once."""
    rows = torch.from_numpy(np.searchsorted(call.blocks, call.table[: len(factors)]).astype(np.int64))
    of_block = torch.ones(len(call.blocks), dtype=torch.float64)
    of_block[rows] = factors
    wide = of_block.view(-1, 1, 1, 1)
    keys = call.keys.double() * wide if SCORES in what else call.keys
    values = call.values.double() * wide if VALUES in what else call.values
    return replace(call, keys=keys, values=values)


class _Model:
    """The output of the call's last tokens as a function of the logarithms of the pages' factors, float64."""

    def __init__(self, call: OpCall, output: torch.Tensor, what: str, pages: int) -> None:
        self.call, self.what, self.pages = call, what, pages
        tokens = torch.arange(len(call.query))[-TOKENS:]
        self.page = torch.arange(call.length) // call.block_size
        query = call.query[tokens].double().transpose(0, 1)
        self.values = gathered(call, call.values)
        self.scores = query @ gathered(call, call.keys).transpose(1, 2) * call.scaling
        self.seen = visible(call, tokens)
        self.wanted = output[tokens].double().transpose(0, 1)

    def weights(self, logarithms: torch.Tensor) -> torch.Tensor:
        """Of the softmax, shape (heads, tokens, length)."""
        call, scores = self.call, self.scores
        if SCORES in self.what:
            scores = scores * logarithms.exp()[self.page]
        scores = torch.tanh(scores / call.softcap) * call.softcap if call.softcap else scores
        scores = scores.masked_fill(~self.seen, -torch.inf)
        if call.sinks is None:
            return torch.softmax(scores, -1)
        sink = call.sinks.double().view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        return torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1]

    def output(self, logarithms: torch.Tensor) -> torch.Tensor:
        values = self.values
        if VALUES in self.what:
            values = values * logarithms.exp()[self.page].unsqueeze(1)
        return self.weights(logarithms) @ values

    def solved(self) -> torch.Tensor | None:
        return self._of_values() if self.what == VALUES else self._of_scores()

    def _of_values(self) -> torch.Tensor | None:
        weights = self.weights(torch.zeros(self.pages, dtype=torch.float64))
        shares = [(weights * (self.page == page)) @ self.values for page in range(self.pages)]
        factors: torch.Tensor = torch.linalg.lstsq(
            torch.stack([share.flatten() for share in shares], 1), self.wanted.flatten().unsqueeze(1), driver="gelsd"
        ).solution[:, 0]
        return factors if bool(torch.isfinite(factors).all()) else None

    def _of_scores(self) -> torch.Tensor | None:
        """Levenberg's damping: a step that makes it worse is tried again, shorter."""
        at = torch.zeros(self.pages, dtype=torch.float64)
        off = self._off(at)
        damping = 1e-3
        for _ in range(ROUNDS):
            slope = torch.stack(
                [(self._off(at + STEP * unit) - off) / STEP for unit in torch.eye(self.pages).double()], 1
            )
            square = slope.T @ slope
            step = torch.linalg.lstsq(
                square + damping * torch.diag(square.diagonal().clamp_min(1e-12)),
                -(slope.T @ off).unsqueeze(1),
                driver="gelsd",
            ).solution[:, 0]
            moved = self._off(at + step)
            if not bool(torch.isfinite(moved).all()) or float(moved.norm()) >= float(off.norm()):
                damping *= 10
                if damping > 1e6:
                    break
                continue
            at, off, damping = at + step, moved, max(damping / 10, 1e-12)
        return at.exp()

    def _off(self, logarithms: torch.Tensor) -> torch.Tensor:
        return (self.output(logarithms) - self.wanted).flatten()
