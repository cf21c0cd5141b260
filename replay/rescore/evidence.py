"""Habit or corruption: how much better each output is explained by a fault than by the healthy model.

For every token there is a likelihood ratio of a fault's distribution against the model's. Under the model the running
product of such ratios is a martingale of mean 1, so by Ville's inequality its largest stretch reaches 1/a with
probability at most n·a in n tokens (a stretch may begin at each of them). That is the false-alarm bound of
`corruption`; it holds where the scorer's distribution is the request's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from checkengine.replay.rescore.scoring import COLDEST, Sampling, TokenScore, log_sum_exp

ALARM = 1e-3
"""Probability of `corruption` for an output that the healthy model wrote itself, at most."""
GARBAGE = 0.5
"""Share of tokens that come from nowhere, where a fault scrambles the output."""
LOST = (0.05, 0.3)
"""Shares of draws in which the likeliest token is lost."""
LEAST = -700.0
"""Log-probabilities below count as this one."""


class TokenVerdict(StrEnum):
    HABIT = "habit"
    """The model would have written it."""
    UNLIKELY = "unlikely"
    """Possible; in so long an output about one such token is to be expected."""
    NEVER = "never"
    """Cut off by the request's own truncation, or too improbable for an output of this length."""


class Outcome(StrEnum):
    HABIT = "habit"
    CORRUPTION = "corruption"
    INCONCLUSIVE = "inconclusive"


@dataclass(slots=True)
class Rescored:
    """`score`: nats of the likeliest stretch beyond what n tokens need; corruption is above `-log(ALARM)`."""

    name: str
    outcome: Outcome
    sentence: str
    score: float
    tokens: list[TokenScore]
    verdicts: list[TokenVerdict]
    stretch: tuple[int, int] = (0, 0)
    """First token and end of the stretch that a fault explains best."""
    sampling: Sampling = field(default_factory=Sampling)

    def to_dict(self, *, texts: Sequence[str] | None = None) -> dict[str, Any]:
        """As JSON. Token ids are content: they are personal data where the output is."""
        return {
            "id": self.name,
            "outcome": str(self.outcome),
            "sentence": self.sentence,
            "score": round(self.score, 4),
            "threshold": -math.log(ALARM),
            "stretch": list(self.stretch),
            "tokens": [
                {
                    "index": index,
                    "token": each.token,
                    "logprob": round(each.logprob, 4),
                    "rank": each.rank,
                    "in_nucleus": each.in_nucleus,
                    "verdict": str(verdict),
                    **({"text": texts[index]} if texts else {}),
                }
                for index, (each, verdict) in enumerate(zip(self.tokens, self.verdicts, strict=True))
            ],
        }

    def suspicious(self) -> list[int]:
        return [index for index, verdict in enumerate(self.verdicts) if verdict is not TokenVerdict.HABIT]


def rescored(name: str, scores: Sequence[TokenScore], sampling: Sampling, vocabulary: int) -> Rescored:
    """Judge one output by its tokens' scores, in order."""
    stretches = [best_stretch([ratio(each) for each in scores]) for ratio in ratios(vocabulary)]
    most, first, end = max(stretches, default=(0.0, 0, 0))
    score = most - math.log(max(1, len(scores)) * max(1, len(stretches)))
    verdicts = [verdict_of(each, len(scores)) for each in scores]
    outcome, sentence = outcome_of(score, verdicts, sampling, (first, end))
    return Rescored(name, outcome, sentence, score, list(scores), verdicts, (first, end), sampling)


def outcome_of(
    score: float, verdicts: Sequence[TokenVerdict], sampling: Sampling, stretch: tuple[int, int]
) -> tuple[Outcome, str]:
    if not verdicts:
        return Outcome.INCONCLUSIVE, "there are no output tokens to score"
    never = sum(verdict is TokenVerdict.NEVER for verdict in verdicts)
    if score <= -math.log(ALARM):
        return Outcome.HABIT, f"the healthy model would have written this: of {len(verdicts)} tokens none stands out"
    where = f"tokens {stretch[0]} to {stretch[1] - 1}"
    if sampling.penalised:
        return Outcome.INCONCLUSIVE, f"{where} stand out, but the request had penalties, which the scorer does not know"
    return Outcome.CORRUPTION, f"the healthy model does not write this: {where} stand out, {never} of them never come"


def probability(score: TokenScore) -> float:
    """Log-probability of the token as the request samples it. Behind the edge of a nucleus it falls steeply, not to
    nothing: where the edge lies is a matter of rounding."""
    return max(LEAST, score.tempered - score.beyond / COLDEST)


def ratios(vocabulary: int) -> list[Callable[[TokenScore], float]]:
    """Log-likelihood ratios against the model, one for each way to fail."""

    def garbage(score: TokenScore) -> float:
        """Some tokens are drawn from the whole vocabulary at random."""
        return log_sum(math.log1p(-GARBAGE), math.log(GARBAGE / vocabulary) - probability(score))

    def lost(share: float) -> Callable[[TokenScore], float]:
        """In some draws the likeliest token is not there."""

        def ratio(score: TokenScore) -> float:
            if score.rank == 1:
                return math.log1p(-share)
            rest = -math.expm1(min(score.best, -1e-12))
            return log_sum(math.log1p(-share), math.log(share) - math.log(rest) + score.beyond / COLDEST)

        return ratio

    return [garbage, *(lost(share) for share in LOST)]


def best_stretch(steps: Sequence[float]) -> tuple[float, int, int]:
    """Largest sum of neighbours, its first index and its end (Kadane)."""
    best, running, first, found = 0.0, 0.0, 0, (0, 0)
    for index, step in enumerate(steps):
        if running <= 0:
            running, first = 0.0, index
        running += step
        if running > best:
            best, found = running, (first, index + 1)
    return best, *found


def verdict_of(score: TokenScore, tokens: int) -> TokenVerdict:
    """A token rarer than one in ALARM of such outputs never comes; one that comes in every few is unlikely."""
    likely = probability(score)
    if likely < math.log(ALARM / tokens) - math.log(1000):
        return TokenVerdict.NEVER
    return TokenVerdict.UNLIKELY if likely < -math.log(tokens) - math.log(20) else TokenVerdict.HABIT


def log_sum(a: float, b: float) -> float:
    return log_sum_exp((a, b))
