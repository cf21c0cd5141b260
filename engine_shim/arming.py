"""Armed captures: for a while, steps that look healthy are captured where they meet a condition."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from checkengine.engine_shim.condition import Condition, ConditionError
from checkengine.guards.finding import Finding, Severity
from checkengine.guards.step import SequenceStart
from checkengine.replay.levels import LEVELS, Level
from checkengine.replay.record import StepRecord

logger = logging.getLogger("checkengine.capture")

MOST_ARMED = 8
MOST_SECONDS = 7 * 24 * 3600.0
MOST_CAPTURES = 1000
ARMED = "armed"
"""Kind and guard under which captures without a finding are counted against `[capture] per_fault`."""


@dataclass(slots=True)
class Arming:
    """At most `most` captures, of `most` different sequences, until `until` (Unix seconds)."""

    condition: Condition
    level: Level
    until: float
    most: int
    identifier: str = field(default_factory=lambda: secrets.token_hex(4))
    captured: set[int] = field(default_factory=set)
    """Handles. A sequence is captured once, though it may meet the condition in every step."""
    pauses_until: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.identifier,
            "when": self.condition.text,
            "level": self.level,
            "until": self.until,
            "most": self.most,
            "captured": len(self.captured),
        }


class Armings:
    """What is armed. Any thread arms and disarms; the engine's thread looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: tuple[Arming, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._armed)

    def made(self, when: str, *, level: str, seconds: float, most: int, now: float) -> Arming:
        """Ready to be added. ConditionError where any of it cannot be used."""
        refuse_limits(level, seconds, most)
        if len(self.active(now)) >= MOST_ARMED:
            raise ConditionError(f"{MOST_ARMED} conditions are armed already: disarm one first")
        return Arming(Condition.parse(when), cast(Level, level), now + seconds, most)

    def add(self, arming: Arming, now: float) -> None:
        """From the next step on."""
        with self._lock:
            kept = [each for each in self._armed if each.until > now]
            self._armed = (*kept, arming)[-MOST_ARMED:]

    def disarm(self, identifier: str) -> Arming | None:
        """None where there was none of this name."""
        with self._lock:
            found = next((each for each in self._armed if each.identifier == identifier), None)
            self._armed = tuple(each for each in self._armed if each is not found)
        return found

    def active(self, now: float) -> tuple[Arming, ...]:
        """What has come to its end is taken out, and the log told so."""
        over = [each for each in self._armed if each.until <= now or len(each.captured) >= each.most]
        for arming in over:
            if self.disarm(arming.identifier):
                logger.warning("armed condition %s is over, with %d captures", arming.identifier, len(arming.captured))
        return self._armed

    def due(self, now: float) -> tuple[Arming, ...]:
        """Those to look for in this step."""
        return tuple(each for each in self.active(now) if each.pauses_until <= now)


def refuse_limits(level: str, seconds: float, most: int) -> None:
    if level not in LEVELS:
        raise ConditionError(f"there is no level {level!r}; there are {', '.join(LEVELS)}")
    if not 0 < seconds <= MOST_SECONDS:
        raise ConditionError(f"armed for {seconds:g} s: give more than 0 and at most seven days")
    if not 1 <= most <= MOST_CAPTURES:
        raise ConditionError(f"at most {most} captures: give 1 to {MOST_CAPTURES}")


@dataclass(frozen=True, slots=True)
class Match:
    arming: Arming
    handle: int
    sequence: str
    findings: tuple[Finding, ...]
    """Of the row, in this step; mostly none."""

    def counted_as(self, step: int) -> Finding:
        """What the limit per fault counts."""
        if self.findings:
            return self.findings[0]
        return Finding(ARMED, self.sequence, Severity.INFO, step, 0, f"{ARMED} {self.arming.identifier}")


Starts = Callable[[], Mapping[int, SequenceStart]]


def matches(armed: Sequence[Arming], record: StepRecord, findings: Sequence[Finding], starts: Starts) -> list[Match]:
    """At most one an arming and step: the first row that meets it and was not captured for it before. `starts` of the
    live sequences is asked for only where names are needed."""
    found = []
    columns: dict[str, Any] = {}
    for arming in armed:
        for name in arming.condition.fields - columns.keys():
            columns[name] = column(name, record, findings, starts)
        rows = arming.condition.rows(columns, len(record.handles))
        for handle in record.handles[rows].tolist():
            if handle not in arming.captured and handle in (known := starts()):
                name = known[handle].name
                found.append(Match(arming, handle, name, own(findings, name)))
                break
    return found


def own(findings: Sequence[Finding], sequence: str) -> tuple[Finding, ...]:
    """Deepest cause first."""
    return tuple(sorted((each for each in findings if each.sequence == sequence), key=lambda each: each.rank))


def column(name: str, record: StepRecord, findings: Sequence[Finding], starts: Starts) -> Any:
    """One field of every row."""
    rows = len(record.handles)
    match name:
        case "length":
            return record.starts + record.query_lengths
        case "tokens":
            return record.query_lengths
        case "step":
            return np.full(rows, record.step)
        case "batch":
            return np.full(rows, rows)
        case "prefix_hit":
            return np.isin(record.handles, [start.handle for start in record.begun]) & (record.starts > 0)
        case "entropy" | "margin":
            return of_stats(name, record)
        case _:
            return texts(name, record, findings, starts)


def of_stats(name: str, record: StepRecord) -> Any:
    """Rows that do not sample, and steps that were only screened, have none."""
    values = np.full(len(record.handles), np.nan)
    numbers = None if record.stats is None else getattr(record.stats, name)
    if numbers is not None and len(numbers) == int(record.samples.sum()):
        values[record.samples] = numbers
    return values


def texts(name: str, record: StepRecord, findings: Sequence[Finding], starts: Starts) -> Any:
    """request, or kind and guard of the row's deepest finding."""
    if name != "request" and not findings:
        return np.full(len(record.handles), "", object)
    known = starts()
    requests = [known[handle].name if handle in known else "" for handle in record.handles.tolist()]
    if name == "request":
        return np.array(requests, object)
    first = [next(iter(own(findings, request)), None) for request in requests]
    return np.array(["" if finding is None else getattr(finding, name) for finding in first], object)
