"""One attention call against float64 on its own inputs, with an error bound in place of a tolerance.

The bound is componentwise and made from the call's own numbers. With δ the error of a score (a dot product and its
scaling), η = e^(δ + …) - 1 that of a weight, w the weights and o the output in float64, rounding moves the output by

    Σ w η |v - o| / (1 - Σ w η)              scores, which numerator and denominator of the softmax share
  + Σ w (1 + η) |v| (γ + stores)             the weighted sum and the storage of weights
  + |o| (γ + stores)                         the softmax's own sum, the division, the storage of the output

at most, whatever the order of the sums and however the row is split. Beyond it, rounding is no explanation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from checkengine.replay.judge.arithmetic import Arithmetic, arithmetic_of, certain, deviations
from checkengine.replay.op_call import OpCall

MOST_SCORES = 1 << 23
"""Scores held in float64 at a time; of a longer call only some tokens are looked at, the last one among them."""
FLOAT64 = 2.0**-40
"""Of the float64 reference itself, relative to the sum of magnitudes; far above 2^-53 times any length."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """All of shape (tokens looked at, heads, value_dim), float64."""

    exact: torch.Tensor
    certain: torch.Tensor
    """Holds for any order of summation."""
    likely: torch.Tensor
    """Holds but for LIKELY_FAILURE, where rounding errors are independent with mean zero."""
    tokens: torch.Tensor
    """Which of the call's tokens, int64."""

    def ratio(self, output: torch.Tensor) -> torch.Tensor:
        """Error over certain bound of the call's whole output; above 1 is no rounding. NaN counts as infinite."""
        return self._over(output, self.certain)

    def likely_ratio(self, output: torch.Tensor) -> torch.Tensor:
        return self._over(output, self.likely)

    def _over(self, output: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
        error = (output[self.tokens].double() - self.exact).abs()
        return torch.where(error == 0, 0.0, error / bound).nan_to_num(torch.inf, torch.inf)


def bounded(call: OpCall, arithmetic: Arithmetic | None = None, *, elements: float = 2.0**30) -> Bounded:
    """`elements`: outputs in the whole judgement, over which the likely bound's failure is spread."""
    arithmetic = arithmetic or arithmetic_of(call.query.dtype)
    tokens = chosen_tokens(call)
    exact, sure, expected = _Bound(call, tokens, arithmetic).made(deviations(elements))
    return Bounded(exact, sure, torch.minimum(sure, expected), tokens)


def chosen_tokens(call: OpCall) -> torch.Tensor:
    count, heads = call.query.shape[:2]
    most = max(1, MOST_SCORES // (heads * call.length))
    places = np.unique(np.linspace(0, count - 1, most).round().astype(np.int64)) if most > 1 else np.array([count - 1])
    return torch.arange(count) if count <= most else torch.from_numpy(places)


def visible(call: OpCall, tokens: torch.Tensor) -> torch.Tensor:
    """Shape (tokens, length), True where a token may see a position."""
    position = (call.length - len(call.query) + tokens).unsqueeze(1)
    key = torch.arange(call.length).unsqueeze(0)
    seen = key <= position
    return seen & (key > position - call.window) if call.window else seen


def gathered(call: OpCall, memory: torch.Tensor) -> torch.Tensor:
    """The row's own slots in the order of positions, float64: (heads of the query, length, dim)."""
    places = torch.from_numpy(np.searchsorted(call.blocks, call.table).astype(np.int64))
    rows = memory[places].flatten(0, 1)[: call.length].double()
    return rows.transpose(0, 1).repeat_interleave(call.query.shape[1] // memory.shape[2], 0)


class _Bound:
    """Scores have shape (heads, tokens, length), outputs (heads, tokens, value_dim), until they are given out."""

    def __init__(self, call: OpCall, tokens: torch.Tensor, arithmetic: Arithmetic) -> None:
        self.call, self.arithmetic = call, arithmetic
        self.unit = arithmetic.accumulate + 2.0**-53
        self.rescales = call.length // arithmetic.chunk + 2
        self.terms = call.length + 2 * self.rescales + 4
        self.width = call.query.shape[2] + 3
        query = call.query[tokens].double().transpose(0, 1)
        keys, self.values = gathered(call, call.keys), gathered(call, call.values).contiguous()
        self.seen = visible(call, tokens)
        self.scores = query @ keys.transpose(1, 2) * call.scaling
        self.magnitude = query.abs() @ keys.abs().transpose(1, 2) * abs(call.scaling)
        self.squares = query.square() @ keys.square().transpose(1, 2) * call.scaling**2
        self.key_sums = keys.abs().sum(-1).unsqueeze(1)

    def made(self, spread: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Exact output, certain bound and likely bound."""
        self.variance = self._score_variance()
        scores, error = self._capped()
        peak = self._peak(scores)
        down = torch.where(self.seen, peak - scores, 0.0)
        powers = torch.where(self.seen, torch.exp(-down), 0.0)
        sink = torch.zeros_like(peak) if self.call.sinks is None else torch.exp(self._sinks() - peak)
        total = powers.sum(-1, keepdim=True) + sink
        self.weights, self.sink = powers / total, sink / total
        self.exact = self.weights @ self.values
        a = self.arithmetic
        moves = 3 * a.accumulate * (down + down.amax(-1, keepdim=True)) + a.elementary * a.accumulate * self.rescales
        self.variance = self.variance + (a.elementary**2 + 9 * down.square()) * a.accumulate**2
        self.eta = torch.expm1(error + moves)
        sure = self._certain()
        outputs = self.exact, sure, self._likely(spread)
        return tuple(output.transpose(0, 1) for output in outputs)  # type: ignore[return-value]

    def _sinks(self) -> torch.Tensor:
        assert self.call.sinks is not None
        return self.call.sinks.double().view(-1, 1, 1)

    def _peak(self, scores: torch.Tensor) -> torch.Tensor:
        peak = scores.masked_fill(~self.seen, -torch.inf).amax(-1, keepdim=True)
        return peak if self.call.sinks is None else torch.maximum(peak, self._sinks())

    def _capped(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores after the cap, and the most that rounding moves them."""
        a, cap, scores = self.arithmetic, self.call.softcap, self.scores
        error = (certain(self.width, self.unit) + a.store) * self.magnitude + 2 * a.store * scores.abs()
        error = error + a.tiny * (2 + self.key_sums)
        if not cap:
            return scores, error
        capped = torch.tanh(scores / cap) * cap
        own = (a.elementary * a.accumulate + 2 * a.store) * capped.abs() + a.accumulate * scores.abs()
        self.variance = self.variance + own.square()
        return capped, error + own

    def _certain(self) -> torch.Tensor:
        a, sums = self.arithmetic, certain(self.terms, self.unit)
        moved = self.weights * self.eta
        # The sink's own error is that of an exponential: at most the largest of the scores'.
        sink = self.sink * torch.where(self.seen, self.eta, 0.0).amax(-1, keepdim=True)
        self.shaken = moved.sum(-1, keepdim=True) + sink
        left = (1 - self.shaken).clamp_min(0.0)
        magnitudes = (self.weights + moved) @ self.values.abs() / left
        scores = self.from_scores = deviation(moved, sink, self.values, self.exact) / left
        stored = a.tiny * (self.seen.double() @ self.values.abs())
        weighted = magnitudes * ((1 + a.store) * (1 + sums) - 1) + stored
        whole = self.exact.abs() + scores + weighted
        divided = whole * ((1 + a.store) * (1 + 3 * a.accumulate) / (1 - sums) - 1) if sums < 1 else whole * torch.inf
        self.small = a.tiny + stored + FLOAT64 * (magnitudes + self.exact.abs())
        return ((scores + weighted + divided) * (1 + 2.0**-20) + self.small).nan_to_num(torch.inf, torch.inf)

    def _score_variance(self) -> torch.Tensor:
        """Of a score's error, as Hoeffding needs it: a square for each rounding. A partial sum of n terms in random
        order has the mean square S²/3 + Q/6 over all its places, S being the sum and Q the sum of squares."""
        a, square = self.arithmetic, self.scores.square()
        sums = self.squares + self.width * (square / 3 + self.squares / 6) + 2 * square
        return a.accumulate**2 * sums + a.store**2 * (self.squares + 2 * square)

    def _likely(self, spread: float) -> torch.Tensor:
        a, weights, exact = self.arithmetic, self.weights, self.exact
        squares = weights.square()
        apart = centred(squares, self.values, exact)
        of_values = squares @ self.values.square()
        variance = centred(squares * self.variance, self.values, exact)
        variance = variance + self.rescales * (a.elementary * a.accumulate) ** 2 * (apart + exact.square() / 3)
        sums = self.terms * (exact.square() / 3 + of_values / 6) + of_values
        own = squares.sum(-1, keepdim=True)
        totals = (self.terms * (1 / 3 + own / 6) + own) * exact.square()
        variance = variance + a.accumulate**2 * (sums + totals) + a.store**2 * of_values
        first = spread * variance.clamp_min(0.0).sqrt()
        higher = 2 * self.shaken * self.from_scores
        last = (a.store + 4 * a.accumulate) * exact.abs()
        return ((first + last + higher) * (1 + 2.0**-20) + self.small).nan_to_num(torch.inf, torch.inf)


def centred(weights: torch.Tensor, values: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Σ weights·(v - o)² over positions, in products of matrices."""
    square = weights @ values.square()
    spread = square - 2 * exact * (weights @ values) + exact.square() * weights.sum(-1, keepdim=True)
    # What cancels may come out below zero, or too small, by the rounding of float64.
    return spread.clamp_min(0.0) + FLOAT64 * square


def deviation(moved: torch.Tensor, sink: torch.Tensor, values: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """At least Σ moved·|v - o| over positions, the sink's v being 0; by Cauchy and Schwarz."""
    return (moved.sum(-1, keepdim=True) * centred(moved, values, exact)).sqrt() + sink * exact.abs()
