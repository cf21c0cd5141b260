"""Series of what was served, and the evidence that each has changed: computed from the requests that the catalog keeps,
by the same detector that gives alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.dashboards.web.charts import Point
from checkengine.guards.drift import SeriesDriftGuard, explain_change
from checkengine.guards.settings import DriftSettings
from checkengine.replay.catalog.fleet import RequestRow

MOST_REQUESTS = 20_000
POINTS = 160
MOST_SCORES = 12
MOST_COMPARED = 2000
SLICES = ("replica", "model", "configuration", "prefix hit")
Value = float | str


@dataclass(frozen=True, slots=True)
class Measure:
    """One series: how to read it of a request, and of what input it is judged given."""

    name: str
    words: str
    read: Callable[[RequestRow], Value | None]
    given: Callable[[RequestRow], float] | None = None


MEASURES = (
    Measure(
        "output_tokens", "Length of the answers, given that of the prompts",
        lambda row: float(row.output_tokens), lambda row: float(row.prompt_tokens),
    ),
    Measure(
        "ttft_seconds", "Time to first token, given the tokens to compute",
        lambda row: row.ttft_seconds, lambda row: float(row.prompt_tokens - row.cached_tokens),
    ),
    Measure(
        "seconds_per_token", "Seconds a token",
        lambda row: row.total_seconds / row.output_tokens if row.total_seconds and row.output_tokens else None,
    ),
    Measure("finish_reason", "How answers end", lambda row: row.error or row.finish_reason or "unknown"),
    Measure("prefix_hit", "Requests that found their prefix in the cache", lambda row: str(row.cached_tokens > 0)),
    Measure("prompt_tokens", "Length of the prompts (what users send)", lambda row: float(row.prompt_tokens)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Alarm:
    time: float
    log_evidence: float
    change: str
    size: float
    dependent: bool


@dataclass(slots=True)
class Series:
    name: str
    words: str
    values: int
    needed: int
    """Values before a change can be told."""
    threshold: float
    """Nats."""
    is_input: bool
    points: list[Point] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)


def newest_requests(session: Session) -> list[RequestRow]:
    """Oldest first."""
    query = sa.select(RequestRow).order_by(RequestRow.time.desc()).limit(MOST_REQUESTS)
    return list(reversed(list(session.scalars(query))))


def all_series(rows: Sequence[RequestRow], settings: DriftSettings | None = None) -> list[Series]:
    """The ones with an alarm first."""
    chosen = settings or DriftSettings()
    found = [series_of(measure, rows, chosen) for measure in (*MEASURES, *scores_in(rows))]
    return sorted((each for each in found if each.values), key=lambda each: (each.is_input, not each.alarms))


def scores_in(rows: Sequence[RequestRow]) -> Iterator[Measure]:
    """The highest number that each guard read of a request."""
    names = sorted({str(name) for row in rows[-200:] for name in row.scores})
    for name in names[:MOST_SCORES]:
        yield Measure(f"score {name}", f"Score of {name}", score_reader(name))


def score_reader(name: str) -> Callable[[RequestRow], Value | None]:
    def read(row: RequestRow) -> Value | None:
        value = row.scores.get(name)
        return float(value) if isinstance(value, int | float) else None

    return read


def series_of(measure: Measure, rows: Sequence[RequestRow], settings: DriftSettings) -> Series:
    known = [(row, value) for row in rows if (value := measure.read(row)) is not None]
    guard = SeriesDriftGuard(measure.name, settings)
    is_input = measure.name in settings.inputs
    made = Series(measure.name, measure.words, len(known), settings.baseline, guard.log_threshold, is_input)
    size = max(1, len(known) // POINTS)
    for begin in range(0, len(known), size):
        part = known[begin : begin + size]
        given = [measure.given(row) for row, _ in part] if measure.given is not None else None
        for found in guard.push_many([value for _, value in part], [row.time for row, _ in part], given):
            made.alarms.append(alarm_of(found.at.get("t", part[-1][0].time), found.evidence))
        last, evidence = part[-1][0].time, guard.log_evidence
        made.points += [Point(alarm.time, alarm.log_evidence) for alarm in made.alarms if part[0][0].time <= alarm.time]
        made.points.append(Point(last, max(0.0, evidence if evidence is not None else 0.0)))
    made.points.sort(key=lambda point: point.time)
    return made


def alarm_of(time: object, evidence: object) -> Alarm:
    told = dict(evidence) if isinstance(evidence, dict) else {}
    return Alarm(
        float(str(time)),
        float(told.get("log_evidence", 0.0)),
        str(told.get("change", "")),
        float(told.get("size", 0.0)),
        bool(told.get("dependent")),
    )


@dataclass(frozen=True, slots=True)
class Moved:
    """What moved since an alarm: features, and slices that moved more than the rest."""

    features: tuple[tuple[str, float], ...]
    slices: tuple[tuple[str, str, float, float], ...]
    """Attribute, value, area under the curve within, and elsewhere; 0.5 is no change."""


def moved(rows: Sequence[RequestRow], since: float) -> Moved | None:
    """None where nothing moved, or where too few requests came on either side."""
    before = [attributes(row) for row in rows if row.time <= since][-MOST_COMPARED:]
    after = [attributes(row) for row in rows if row.time > since][:MOST_COMPARED]
    found = explain_change(before, after, SLICES)
    if found is None:
        return None
    return Moved(
        tuple((each.feature, each.importance) for each in found.moved),
        tuple((each.attribute, each.value, each.area, each.area_elsewhere) for each in found.slices),
    )


def attributes(row: RequestRow) -> dict[str, Value]:
    known: dict[str, Value | None] = {
        "replica": row.replica,
        "model": row.model,
        "configuration": row.configuration,
        "prefix hit": str(row.cached_tokens > 0),
        "prompt tokens": float(row.prompt_tokens),
        "output tokens": float(row.output_tokens),
        "time to first token": row.ttft_seconds,
        "finish": row.error or row.finish_reason,
    }
    return {name: value for name, value in known.items() if value is not None}
