"""How long tokens take, against the service's objective: each stream by itself, first tokens over all streams."""

from __future__ import annotations

from collections.abc import Iterator

from checkengine.detectors.latency import BurstLimits, LateBurst
from checkengine.guards.finding import Severity
from checkengine.guards.settings import LatencySettings
from checkengine.guards.text import TextFinding

KIND = "latency.slo"
NAME = "latency"


class FirstTokens:
    """Over all requests: a burst of late first tokens is told on the last of them."""

    def __init__(self, settings: LatencySettings) -> None:
        self.settings = settings
        self._bursts = _burst(settings.ttft_seconds, settings)

    @property
    def is_limited(self) -> bool:
        return self.settings.ttft_seconds is not None or self.settings.tbt_seconds is not None

    def add(self, identity: str, wait: float) -> Iterator[TextFinding]:
        if self._bursts is not None and self._bursts.add(wait):
            yield _finding(identity, "ttft", wait, self._bursts.limits.seconds, 0)


class Pace:
    """Of one stream's chunks, in the order in which they came. A burst is told once."""

    def __init__(self, identity: str, settings: LatencySettings) -> None:
        self._id = identity
        self._bursts = _burst(settings.tbt_seconds, settings)
        self._chunks = 0

    def add(self, wait: float) -> Iterator[TextFinding]:
        self._chunks += 1
        if self._bursts is not None and self._bursts.add(wait):
            yield _finding(self._id, "tbt", wait, self._bursts.limits.seconds, self._chunks)
            self._bursts = None


def _finding(identity: str, what: str, wait: float, limit: float, chunk: int) -> TextFinding:
    evidence = {f"{what}_seconds": round(wait, 4), "limit_seconds": limit}
    return TextFinding(KIND, identity, Severity.WARNING, NAME, {"token": chunk}, 1, evidence)


def _burst(seconds: float | None, settings: LatencySettings) -> LateBurst | None:
    return None if seconds is None else LateBurst(BurstLimits(seconds, settings.burst, settings.forgiven))
