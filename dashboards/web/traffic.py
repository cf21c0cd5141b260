"""Requests and findings over a day, from the catalog: how clean and how fast the service is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.guards.finding import Severity
from checkengine.replay.catalog.fleet import RequestRow
from checkengine.replay.catalog.models import FindingRow

T = TypeVar("T")
POINTS = 48
DAY = 86400.0
SPAN = int(DAY) // POINTS
SAMPLE = 2000
"""Newest requests that percentiles are taken of."""
MOST_FINDINGS = 200_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """Series have POINTS values, the newest last; None where nothing was served."""

    requests: tuple[int, ...] = (0,) * POINTS
    unclean: tuple[int, ...] = (0,) * POINTS
    ttft: tuple[float | None, ...] = (None,) * POINTS
    """Mean seconds to the first token."""
    ttft_p95: float | None = None
    """Of the newest requests."""

    @property
    def clean(self) -> list[float | None]:
        return [
            None if not requests else max(0.0, 1 - bad / requests)
            for requests, bad in zip(self.requests, self.unclean, strict=True)
        ]

    def clean_ratio(self, points: int) -> float | None:
        """Share of sequences without an ERROR in the newest `points` spans."""
        requests, unclean = sum(self.requests[-points:]), sum(self.unclean[-points:])
        return None if not requests else max(0.0, 1 - unclean / requests)

    def burn(self, points: int, objective: float) -> float | None:
        """How many times too fast the budget of errors is spent; 1 spends it exactly."""
        ratio = self.clean_ratio(points)
        return None if ratio is None else (1 - ratio) / (1 - objective)


def traffic(session: Session, now: float) -> Traffic:
    since = now - DAY
    first = int(since) // SPAN + 1
    requests, ttft = [0] * POINTS, [None] * POINTS  # type: list[int], list[float | None]
    span = spans(RequestRow.time)
    query = sa.select(span, sa.func.count(), sa.func.avg(RequestRow.ttft_seconds)).where(RequestRow.time >= since)
    for place, count, mean in session.execute(query.group_by(span)):
        if 0 <= place - first < POINTS:
            requests[place - first], ttft[place - first] = int(count), None if mean is None else float(mean)
    return Traffic(tuple(requests), unclean(session, since, first), tuple(ttft), percentile(session, since))


def unclean(session: Session, since: float, first: int) -> tuple[int, ...]:
    """Sequences with an ERROR, by the span of the finding."""
    counts = [0] * POINTS
    span = spans(FindingRow.time)
    errors = (FindingRow.time >= since, FindingRow.severity >= int(Severity.ERROR), FindingRow.primary.is_(True))
    found = sa.select(span.label("span"), FindingRow.sequence).where(*errors).limit(MOST_FINDINGS).subquery()
    query = sa.select(found.c.span, sa.func.count(sa.distinct(found.c.sequence))).group_by(found.c.span)
    for place, count in session.execute(query):
        if 0 <= place - first < POINTS:
            counts[place - first] = int(count)
    return tuple(counts)


def percentile(session: Session, since: float, share: float = 0.95) -> float | None:
    known = (RequestRow.time >= since, RequestRow.ttft_seconds.is_not(None))
    query = sa.select(RequestRow.ttft_seconds).where(*known).order_by(RequestRow.time.desc()).limit(SAMPLE)
    seconds = sorted(value for value in session.scalars(query) if value is not None)
    return seconds[min(len(seconds) - 1, int(share * len(seconds)))] if seconds else None


def spans(column: Any) -> Any:
    return sa.cast(column, sa.BigInteger) // SPAN


@dataclass(slots=True)
class Kept(Generic[T]):
    """A value that costs something, for a few seconds. Thread-safe; one caller at a time makes it anew."""

    seconds: float
    clock: Callable[[], float]
    _value: T | None = None
    _made: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, make: Callable[[], T]) -> T:
        with self._lock:
            now = self.clock()
            if self._value is None or not 0 <= now - self._made < self.seconds:
                self._value, self._made = make(), now
            return self._value
