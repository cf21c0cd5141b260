"""How likely each output token was: what a scorer tells, and how a request's sampling bends it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from checkengine.guards.errors import UserError

COLDEST = 0.05
"""Temperatures below count as this one: greedy decoding breaks ties by rounding, which differs between executors."""
PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


class ScoreError(UserError):
    """A healthy executor could not score; the message says what, where and what to do."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Of the request, as engines name it; neutral values are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    penalised: bool = False
    """Presence, frequency or repetition penalties: they bend what the scorer does not know of."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Sampling:
        """From a request's or a record's parameters; ValueError where one is no number in its range."""
        number = {name: values.get(name) for name in ("temperature", "top_p", "top_k", "min_p")}
        given = {name: float(value) for name, value in number.items() if value is not None}
        top_k = max(0, int(given.pop("top_k", 0)))
        penalised = any(values.get(name) not in (None, neutral) for name, neutral in PENALTIES.items())
        found = cls(**given, top_k=top_k, penalised=penalised)
        if not (found.temperature >= 0 and 0 < found.top_p <= 1 and 0 <= found.min_p <= 1):
            raise ValueError(f"sampling parameters out of range: {given}")
        return found

    @property
    def heat(self) -> float:
        return max(self.temperature, COLDEST)


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One output token under the healthy model, before and after the request's temperature and truncation."""

    token: int
    logprob: float
    """Nats, temperature 1, nothing cut off."""
    rank: int | None
    """1 is the likeliest. None: behind all that the scorer listed."""
    tempered: float
    """Log-probability at the request's temperature; an upper bound where the scorer lists the likeliest only."""
    best: float
    """Of the likeliest token, at the request's temperature."""
    beyond: float
    """Nats (temperature 1) between the token and the edge of what top-p, top-k and min-p leave; 0 inside."""

    @property
    def in_nucleus(self) -> bool:
        return self.beyond == 0.0


class Scorer(Protocol):
    """A healthy executor. Raises ScoreError."""

    vocabulary: int

    def score(self, prompt: Sequence[int], output: Sequence[int], sampling: Sampling) -> list[TokenScore]:
        """One score an output token, each given the prompt and the output before it."""


def score_of_listed(
    token: int,
    logprob: float,
    rank: int | None,
    listed: Sequence[float],
    sampling: Sampling,
    vocabulary: int,
    log_total: float | None = None,
) -> TokenScore:
    """From the token's log-probability and those of the likeliest, falling.

    `log_total`: log of the sum of p^(1/T) over the vocabulary, where it is known; else bounded from both sides, each
    used in the token's favour: `tempered` is at least the truth, `best` at most, and the edge no earlier.
    """
    heat = sampling.heat
    low, high = (log_total, log_total) if log_total is not None else totals(logprob, listed, heat, vocabulary)
    tempered, best = min(0.0, logprob / heat - low), min(0.0, listed[0] / heat - high)
    edge = edge_of(listed, sampling, high)
    beyond = max(0.0, edge - logprob) if edge is not None else 0.0
    return TokenScore(token, logprob, rank, tempered, best, beyond)


def totals(logprob: float, listed: Sequence[float], heat: float, vocabulary: int) -> tuple[float, float]:
    """Bounds of log sum p^(1/T), from the likeliest tokens' log-probabilities and what is left to the others."""
    known = log_sum_exp([value / heat for value in listed])
    low = log_sum_exp([known, logprob / heat]) if logprob < listed[-1] else known
    left, others = -math.expm1(min(0.0, log_sum_exp(listed))), max(1, vocabulary - len(listed))
    if left <= 0:
        return low, low
    # Below temperature 1 the sum is largest where few tokens are as likely as can be, above it where all are alike.
    rest = (
        math.log(left) + (1 / heat - 1) * listed[-1] if heat <= 1 else math.log(others) + math.log(left / others) / heat
    )
    return low, max(low, log_sum_exp([known, rest]))


def edge_of(listed: Sequence[float], sampling: Sampling, log_total: float) -> float | None:
    """Log-probability (temperature 1) of the last token that truncation leaves, of those listed; None where it lies
    behind them, or nothing is cut off. Truncation as engines do it: top-k, then min-p, then top-p."""
    heat, kept, edges = sampling.heat, list(listed), []
    if 0 < sampling.top_k <= len(kept):
        kept = kept[: sampling.top_k]
        edges.append(kept[-1])
    if sampling.min_p > 0:
        floor = kept[0] + heat * math.log(sampling.min_p)
        inside = [value for value in kept if value >= floor]
        if len(inside) < len(kept):
            edges.append(inside[-1])
        kept = inside
    if sampling.top_p < 1:
        weight = log_sum_exp([value / heat for value in kept]) if edges else log_total
        mass = 0.0
        for value in kept:
            mass += math.exp(value / heat - weight)
            if mass >= sampling.top_p:
                edges.append(value)
                break
    return max(edges) if edges else None


def log_sum_exp(values: Sequence[float]) -> float:
    most = max(values)
    return most + math.log(math.fsum(math.exp(value - most) for value in values))
