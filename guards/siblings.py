"""One replica, device, driver or kernel against its siblings: `drift.replica`, `drift.device`, …

Findings of exact kinds accuse at the first one: no healthy member has any. Others are counted and compared, kind by
kind, by a sequential test whose false accusations are bounded in time (`detectors.drift.siblings`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from checkengine.detectors.drift.siblings import Accusation, Counts, SiblingTest
from checkengine.guards.finding import Severity
from checkengine.guards.settings import SiblingSettings
from checkengine.guards.text import TextFinding

MOST_TOLD = 4096
"""Members and kinds of exact findings that are remembered as told."""


class SiblingGuard:
    """Takes requests and findings with the labels of where they ran, {"replica": "r7", "device": "H200"…}.

    Dimensions are those of the settings; labels of others are ignored. Count a cause once: findings of one incident
    are one. Not thread-safe; times in seconds, not going back.
    """

    name: str = "siblings"
    version: int = 1

    def __init__(self, settings: SiblingSettings) -> None:
        self._settings = settings
        self._tests: dict[tuple[str, str], SiblingTest] = {}
        self._requests: dict[str, dict[str, int]] = {dimension: {} for dimension in settings.dimensions}
        self._findings: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self._told: set[tuple[str, str, str]] = set()
        self._flushed: float | None = None

    def request(self, t: float, labels: Mapping[str, str], count: int = 1) -> list[TextFinding]:
        """Requests that ended at these labels, with or without a finding."""
        told = self._advance(t)
        for dimension, members in self._requests.items():
            if dimension in labels:
                members[labels[dimension]] = members.get(labels[dimension], 0) + count
        return told

    def finding(self, t: float, kind: str, labels: Mapping[str, str]) -> list[TextFinding]:
        """A finding on one of those requests. Of an exact kind it is told at once, once for each member."""
        told = self._advance(t)
        for dimension in self._requests:
            if dimension not in labels:
                continue
            if kind in self._settings.exact_kinds:
                told += self._exact(t, kind, dimension, labels[dimension])
            else:
                self._count(kind, dimension, labels[dimension])
        return told

    def flush(self, t: float) -> list[TextFinding]:
        """Judges what came since the last interval ended; otherwise done by the first call after it."""
        told: list[TextFinding] = []
        for kind in sorted({kind for _, kind in self._findings} | {kind for _, kind in self._tests}):
            for dimension, requests in self._requests.items():
                counts = Counts(dict(requests), dict(self._findings.get((dimension, kind), {})))
                for accusation in self._test(dimension, kind).observe(t, counts):
                    told.append(self._finding(t, kind, dimension, accusation))
        for members in self._requests.values():
            members.clear()
        self._findings.clear()
        self._flushed = t
        return told

    def readmit(self, dimension: str, member: str) -> None:
        """After a repair: the member is compared again, and told again."""
        for (of, _), test in self._tests.items():
            if of == dimension:
                test.readmit(member)
        self._told = {each for each in self._told if each[1:] != (dimension, member)}

    def _advance(self, t: float) -> list[TextFinding]:
        if self._flushed is None:
            self._flushed = t
        return self.flush(t) if t - self._flushed >= self._settings.interval_seconds else []

    def _count(self, kind: str, dimension: str, member: str) -> None:
        known = {each for _, each in self._findings} | {each for _, each in self._tests}
        if kind in known or len(known) < self._settings.kinds:
            members = self._findings[dimension, kind]
            members[member] = members.get(member, 0) + 1

    def _test(self, dimension: str, kind: str) -> SiblingTest:
        """The year's accusations are shared out evenly over dimensions and kinds."""
        if (dimension, kind) not in self._tests:
            share = self._settings.accusations_a_year / (len(self._requests) * self._settings.kinds)
            self._tests[dimension, kind] = SiblingTest(self._settings.members, share)
        return self._tests[dimension, kind]

    def _exact(self, t: float, kind: str, dimension: str, member: str) -> Iterable[TextFinding]:
        if (kind, dimension, member) in self._told or len(self._told) >= MOST_TOLD:
            return ()
        self._told.add((kind, dimension, member))
        evidence: dict[str, float | int | bool | str] = {"of": kind, "exact": True, "findings": 1}
        return (TextFinding(f"drift.{dimension}", member, Severity.ERROR, self.name, {"t": t}, self.version, evidence),)

    def _finding(self, t: float, kind: str, dimension: str, accusation: Accusation) -> TextFinding:
        evidence: dict[str, float | int | bool | str] = {
            "of": kind,
            "exact": False,
            "log_evidence": round(accusation.log_evidence, 2),
            "findings": accusation.findings,
            "requests": accusation.requests,
            "siblings_per_million": round(1e6 * accusation.rate_of_siblings, 3),
        }
        return TextFinding(
            f"drift.{dimension}", accusation.member, Severity.WARNING, self.name, {"t": t}, self.version, evidence
        )
