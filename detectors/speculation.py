"""How many draft tokens the model accepts, sequence by sequence.

Very few: the target model's state is corrupt, so that it disagrees with a sane draft. Nearly all, for long: it repeats
itself. z.ai stop a request whose accept length is below 1.4 after 128 tokens or whose accept rate is above 0.96
("Scaling Pain", 2026). A corruption that sets in late hides in the average, so the newest drafts are also held against
the sequence's own earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Acceptance(Enum):
    LOW = "low"
    HIGH = "high"
    FALLEN = "fallen"
    RISEN = "risen"


@dataclass(frozen=True, slots=True)
class AcceptanceLimits:
    least_length: float = 1.4
    """Tokens a verification yields on average, its own one included."""
    most_rate: float = 0.96
    """Accepted per proposed."""
    tokens: int = 128
    """Output tokens of verified steps before anything is said, and again for every `HIGH`."""
    change_nats: float = 16.0
    """Log likelihood ratio of two rates, the newest drafts' and the earlier ones', against a common one…"""
    fallen_to: float = 0.5
    """…and then only if the newest rate is below this share of the earlier one, or above `most_rate`."""
    block: int = 128
    """Proposed tokens that make the newest drafts."""


@dataclass(frozen=True, slots=True)
class AcceptanceReading:
    kind: Acceptance
    tokens: int
    proposed: int
    accepted: int
    steps: int
    earlier_rate: float
    """Of the drafts before the newest block; NaN where there are none."""
    newest_rate: float

    @property
    def rate(self) -> float:
        return self.accepted / self.proposed

    @property
    def length(self) -> float:
        return self.tokens / self.steps


_STEPS, _PROPOSED, _ACCEPTED, _BLOCK_PROPOSED, _BLOCK_ACCEPTED, _PAST_PROPOSED, _PAST_ACCEPTED = range(7)


class AcceptanceCounts:
    """Of all sequences at once; 7 numbers each. Slots are numbers that the caller hands out and clears.

    Blocks: the newest drafts fill a block; a full one is compared with all before it and then joins them.
    """

    def __init__(self, limits: AcceptanceLimits | None = None) -> None:
        self.limits = limits or AcceptanceLimits()
        self._counts = np.zeros((64, 7), np.int64)

    def clear(self, slot: int) -> None:
        if slot >= len(self._counts):
            more = max(slot + 1, len(self._counts))
            self._counts = np.concatenate((self._counts, np.zeros((more, 7), np.int64)))
        self._counts[slot] = 0

    def add(self, slots: Ints, proposed: Ints, accepted: Ints) -> list[tuple[int, AcceptanceReading]]:
        """One verification each of different sequences, 0 <= accepted <= proposed, proposed > 0. Returns (index into
        `slots`, reading)."""
        counts, limits = self._counts, self.limits
        counts[slots, _STEPS] += 1
        for column, amount in (
            (_PROPOSED, proposed),
            (_ACCEPTED, accepted),
            (_BLOCK_PROPOSED, proposed),
            (_BLOCK_ACCEPTED, accepted),
        ):
            counts[slots, column] += amount
        now = counts[slots]
        tokens = now[:, _STEPS] + now[:, _ACCEPTED]
        ripe = tokens >= limits.tokens
        low = ripe & (tokens < limits.least_length * now[:, _STEPS])
        high = ripe & (now[:, _ACCEPTED] > limits.most_rate * now[:, _PROPOSED])
        full = now[:, _BLOCK_PROPOSED] >= limits.block
        found = [(i, self._reading(now[i], Acceptance.LOW)) for i in np.flatnonzero(low).tolist()]
        found += [(i, self._reading(now[i], Acceptance.HIGH)) for i in np.flatnonzero(high).tolist()]
        for index in np.flatnonzero(full).tolist():
            if kind := self._change(now[index]):
                found.append((index, self._reading(now[index], kind)))
            self._turn(int(slots[index]))
        return found

    def _change(self, now: Ints) -> Acceptance | None:
        limits = self.limits
        past, newest = int(now[_PAST_PROPOSED]), int(now[_BLOCK_PROPOSED])
        if past < limits.block:
            return None
        earlier, rate = now[_PAST_ACCEPTED] / past, now[_BLOCK_ACCEPTED] / newest
        # The drafts of one step stand and fall together: they count as one.
        drafts = now[_PROPOSED] / now[_STEPS]
        if change_nats(now[_PAST_ACCEPTED], past, now[_BLOCK_ACCEPTED], newest) < limits.change_nats * drafts:
            return None
        if rate < limits.fallen_to * earlier:
            return Acceptance.FALLEN
        return Acceptance.RISEN if rate > limits.most_rate else None

    def _turn(self, slot: int) -> None:
        row = self._counts[slot]
        row[_PAST_PROPOSED] += row[_BLOCK_PROPOSED]
        row[_PAST_ACCEPTED] += row[_BLOCK_ACCEPTED]
        row[_BLOCK_PROPOSED] = row[_BLOCK_ACCEPTED] = 0

    def _reading(self, now: Ints, kind: Acceptance) -> AcceptanceReading:
        steps, proposed, accepted = (int(now[column]) for column in (_STEPS, _PROPOSED, _ACCEPTED))
        past, newest = int(now[_PAST_PROPOSED]), int(now[_BLOCK_PROPOSED])
        return AcceptanceReading(
            kind,
            steps + accepted,
            proposed,
            accepted,
            steps,
            earlier_rate=int(now[_PAST_ACCEPTED]) / past if past else float("nan"),
            newest_rate=int(now[_BLOCK_ACCEPTED]) / newest if newest else float("nan"),
        )


def change_nats(first: float, first_of: float, second: float, second_of: float) -> float:
    """Log likelihood ratio of two rates of their own against one common rate (half of the G statistic)."""
    together = (first + second) / (first_of + second_of)
    return first_of * _divergence(first / first_of, together) + second_of * _divergence(second / second_of, together)


def _divergence(rate: float, other: float) -> float:
    """Kullback-Leibler, of two coins, in nats."""
    found = 0.0
    for mine, theirs in ((rate, other), (1 - rate, 1 - other)):
        if mine > 0:
            found += mine * float(np.log(mine / theirs))
    return found
