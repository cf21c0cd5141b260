"""Whether one member of a fleet (replica, device, driver, kernel) has findings more often than its siblings.

Null: while nothing is wrong, each finding falls on a member with the probability of its share of the requests, however
many findings there are in all and however their rate moves; findings are independent (count a cause once). For each
member and each ratio of rates there is a bet; a bet's product is an e-process, and a new one starts every
`START_SECONDS`. By Ville's inequality for sums of e-processes (Shin, Ramdas, Rinaldo, arXiv 2203.03532), a member is
falsely accused within a time T with probability at most (starts in T) / threshold; summed over all members, at most
`accusations_a_year` are expected, whatever the rate of findings and of requests. Where a request has at most one
finding, findings are drawn without replacement, which only makes large shares rarer (Hoeffding 1963).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

START_SECONDS = 6 * 3600.0
YEAR_SECONDS = 365.25 * 86400.0
RATIOS = np.array([3.0, 10.0, 40.0, 160.0])
"""Of a member's rate to its siblings'."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests and findings by member, over one interval. Sums of these are the same in any order."""

    requests: Mapping[str, int] = field(default_factory=dict)
    findings: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        return Counts(_sum(self.requests, other.requests), _sum(self.findings, other.findings))


@dataclass(frozen=True, slots=True)
class Accusation:
    member: str
    log_evidence: float
    """Nats; at least the log of the threshold."""
    findings: int
    """Of the member, since it was first seen."""
    requests: int
    rate_of_siblings: float
    """Findings a request of all others, since they were first seen."""

    @property
    def ratio(self) -> float:
        """Of the member's rate to its siblings'; infinite where these had no finding."""
        own = self.findings / max(1, self.requests)
        return own / self.rate_of_siblings if self.rate_of_siblings else math.inf


class SiblingTest:
    """One kind of finding over the members of one fleet. State: a few hundred bytes a member."""

    def __init__(self, most_members: int, accusations_a_year: float = 1.0) -> None:
        """`most_members`: later ones are counted and not judged."""
        if most_members < 2 or not accusations_a_year > 0.0:
            raise ValueError("siblings need at least two members and some accusations a year")
        self._most = most_members
        self.threshold = max(1.0, most_members * YEAR_SECONDS / START_SECONDS / accusations_a_year)
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._total = Counts()
        self._accused: set[str] = set()
        self._start = -math.inf

    @property
    def accused(self) -> frozenset[str]:
        """They stay out of the comparison until `readmit`."""
        return frozenset(self._accused)

    def readmit(self, member: str) -> None:
        """After a repair; it starts with no evidence against it."""
        self._accused.discard(member)
        self._sums.pop(member, None)

    def observe(self, t: float, counts: Counts) -> list[Accusation]:
        """Counts since the call before; `t` in seconds, not earlier than that call's. An interval should be short
        against the time in which members' shares of the requests move."""
        self._begin(t, counts)
        self._total = self._total + counts
        judged = {member: n for member, n in counts.requests.items() if n > 0 and member in self._sums}
        findings = {member: n for member, n in counts.findings.items() if n > 0 and member in judged}
        if not findings:
            return []
        everyone = sum(judged.values())
        for member, requests in judged.items():
            gain = 1.0 + (RATIOS - 1.0) * requests / everyone
            own = findings.get(member, 0)
            log = own * np.log(RATIOS) - sum(findings.values()) * np.log(gain)
            self._sums[member] = np.minimum(self._sums[member] * np.exp(np.clip(log, -700, 700)), 1e300)
        return [self._accuse(member) for member in sorted(findings) if self._sums[member].mean() >= self.threshold]

    def _begin(self, t: float, counts: Counts) -> None:
        if t >= self._start + START_SECONDS:
            self._start = t
            for sums in self._sums.values():
                sums += 1.0
        for member in sorted(counts.requests):
            if member not in self._sums and member not in self._accused and len(self._sums) < self._most:
                self._sums[member] = np.ones(len(RATIOS))

    def _accuse(self, member: str) -> Accusation:
        log = math.log(float(self._sums.pop(member).mean()))
        self._accused.add(member)
        others = [each for each in self._total.requests if each not in self._accused]
        requests = sum(self._total.requests[each] for each in others)
        findings = sum(self._total.findings.get(each, 0) for each in others)
        own = self._total.findings.get(member, 0), self._total.requests.get(member, 0)
        return Accusation(member, log, own[0], own[1], findings / max(1, requests))


def _sum(mine: Mapping[str, int], theirs: Mapping[str, int]) -> dict[str, int]:
    return {member: mine.get(member, 0) + theirs.get(member, 0) for member in sorted({*mine, *theirs})}
