"""Evidence that a sampler does not draw as it should, from tokens that it may draw.

Betting (Ville 1939; Shafer 2021; Ramdas et al. 2023, "Game-theoretic statistics and safe anytime-valid inference"):
each token multiplies a wager by a factor whose mean is at most 1 if the sampler is honest, given all that came before.
Two kinds of bet, each at several rates:

- *Passed over*: with probability q the best token is missing from the set, as an approximate top-k loses it. Factor
  1 - q where the token is (one of) the best, 1 + q (1 - m) / m where it is not, m being the probability of that.
  An upper bound of m keeps the mean at or below 1.
- *Foreign*: with probability e the token comes from elsewhere (another row, uninitialised memory) and is any of the V
  tokens. Factor 1 - e + e / (V p) for a token of probability p; a lower bound 1 - e where p was not worked out.

*A sequence*: the average of its wagers exceeds 1 / a with probability at most a over its whole life (Ville's
inequality), however long it is and whenever one looks.
*A replica*: a fault may begin at any time, so wagers are opened at every step and kept (Shiryaev-Roberts):
M = (1 + M) x the step's factor. M - steps is a supermartingale, so the mean number of steps to a false alarm at
M >= A is at least A (Pollak 1985; Shin, Ramdas, Rinaldo 2022, "E-detectors"), for any mixture of bets.

Assumed: rows are drawn independently given their logits, and which rows are bet on was settled before their tokens.
What the sampler's arithmetic may be off by is in `SLACK` and goes into the bounds of m and p.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from checkengine.detectors.sampling import Precision

PASSED_OVER = np.array([0.01, 0.05, 0.3])
FOREIGN = np.array([0.01, 0.3])
WEIGHTS = np.array([0.35, 0.15, 0.1, 0.2, 0.2])
"""Of the bets, first the passed over ones; they sum to 1."""

SLACK: dict[Precision, tuple[float, float]] = {
    "float32": (1e-3, 1e-6),
    "float16": (0.05, 1e-3),
    "bfloat16": (0.3, 1e-2),
}
"""Relative and absolute error of a probability that the sampler works with. bfloat16 logits near 16 are 0.125 apart."""
RAREST = 1e-9
"""No single token is taken to be rarer: a generator of 32 bits cannot draw much rarer ones rightly."""

_BEST: NDArray[np.float64] = np.log1p(-np.concatenate((PASSED_OVER, FOREIGN)))


def factors(
    miss: NDArray[np.float64], own: NDArray[np.float64], vocabulary: int, precision: Precision
) -> NDArray[np.float64]:
    """Logarithms of the factors, shape (rows, bets), of tokens below the best; NaN rows say nothing (0)."""
    relative, absolute = SLACK[precision]
    m = np.minimum(miss * (1 + relative) + absolute, 1.0)[:, None]
    p = (own * (1 + relative) + RAREST)[:, None]
    over = np.log1p(PASSED_OVER * (1 - m) / m)
    foreign = np.log(1 - FOREIGN + FOREIGN / (vocabulary * p))
    found = np.concatenate((over, foreign), axis=1)
    checked: NDArray[np.float64] = np.where(np.isfinite(found), found, 0.0)
    return checked


def best_factors() -> NDArray[np.float64]:
    """Logarithms of the factors of a token that is one of the best, shape (bets,): lower bounds."""
    return _BEST


class SequenceEvidence:
    """Wagers of every sequence. Slots are numbers that the caller hands out and clears."""

    def __init__(self, level: float) -> None:
        """`level`: probability that an honest sequence is ever accused."""
        self.threshold = -np.log(level)
        self._logs = np.zeros((64, len(WEIGHTS)))
        self._weights = np.log(WEIGHTS)

    def clear(self, slot: int) -> None:
        if slot >= len(self._logs):
            self._logs = np.concatenate((self._logs, np.zeros((max(slot + 1, len(self._logs)), len(WEIGHTS)))))
        self._logs[slot] = 0.0

    def add(self, slots: NDArray[np.int64], logs: NDArray[np.float64]) -> None:
        """One token each of different sequences; `logs` has shape (rows, bets) or (bets,)."""
        self._logs[slots] += logs

    def nats(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Shape (rows,): logarithm of the average of each sequence's wagers."""
        found: NDArray[np.float64] = np.logaddexp.reduce(self._logs[slots] + self._weights, axis=1)
        return found


class ReplicaEvidence:
    """Wagers over all sequences together, a new one opened at every step."""

    def __init__(self, steps: float) -> None:
        """`steps`: fewest steps to a false alarm, on average."""
        self.threshold = np.log(steps)
        self._logs = np.full(len(WEIGHTS), -np.inf)

    def step(self, logs: NDArray[np.float64]) -> float:
        """`logs`: sum over the step's rows, shape (bets,). Returns the nats of evidence."""
        self._logs = np.logaddexp(self._logs, 0.0) + logs
        return float(np.logaddexp.reduce(self._logs + np.log(WEIGHTS)))

    def restart(self) -> None:
        self._logs[:] = -np.inf
