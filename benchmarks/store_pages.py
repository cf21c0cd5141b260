"""How long the dashboard's questions take when the catalog holds a million incidents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.benchmarks.figure import figure
from checkengine.replay.catalog import Catalog, counts
from checkengine.replay.catalog.causes import Cause, cause_ids
from checkengine.replay.catalog.incident_list import IncidentFilter, incident_page
from checkengine.replay.catalog.incident_rows import bucket
from checkengine.replay.catalog.models import FindingRow, IncidentRow

NOW = 1.8e9
DAYS = 90
GUARDS = ("nonfinite", "uniform", "repetition", "language", "salad", "ignored_stop", "tool_calls", "latency")
REPLICAS, CHUNK = 400, 20_000
PAGE_MILLISECONDS = 100.0
Question = Callable[[Session], Any]


def fill(catalog: Catalog, incidents: int, seed: int = 0) -> None:
    """Incidents of `GUARDS` on `REPLICAS` replicas over `DAYS` days, most of them closed; one finding each. Device and
    driver go by the replica, so that many pairs of values never meet, and one guard struck three times, long ago."""
    random = np.random.default_rng(seed)
    causes = made_causes(catalog)
    with catalog.writing() as session:
        ids = list(cause_ids(session, set(causes)).values())
        rare = cause_ids(session, {Cause("rare", "rare.kind", 2, "m0", "host0:1", "gpu0", "550", "flash")})
    for begin in range(0, incidents, CHUNK):
        count = min(CHUNK, incidents - begin)
        chosen = random.choice(ids, count)
        if begin == 0:
            chosen[:3] = next(iter(rare.values()))
        seen = NOW - random.random(count) * DAYS * 86400
        seen[:3] = NOW - DAYS * 86400 + 1 if begin == 0 else seen[:3]
        status = random.choice(["open", "acknowledged", "muted", "closed"], count, p=[0.01, 0.03, 0.01, 0.95])
        with catalog.writing() as session:
            write_chunk(session, begin, chosen, seen, status)
    with catalog.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()


def made_causes(catalog: Catalog) -> list[Cause]:
    return [
        Cause(
            guard,
            f"{guard}.kind",
            2 if index % 3 else 1,
            f"model-{replica % 4}",
            f"host{replica}:{replica}",
            f"gpu{replica % 50}",
            f"driver-{replica % 5}",
            ("flash", "paged", "torch")[replica % 3],
            ("hit", "miss")[replica % 2],
        )
        for index, guard in enumerate(GUARDS)
        for replica in range(REPLICAS)
    ]


def write_chunk(session: Session, begin: int, causes: Any, seen: Any, status: Any) -> None:
    rows = list(enumerate(zip(causes.tolist(), seen.tolist(), status.tolist(), strict=True), begin))
    incidents = [
        {"id": f"inc-{i:08d}", "kind": "k", "replica": "r", "first_seen": t - 60, "last_seen": t, "findings": 1,
         "evidence": 0, "sequences": 1, "cause_id": c, "status": s, "assignee": "ann" if i % 50 == 0 else "",
         "sequence": f"req-{i}", "trace_id": "", "held": False}
        for i, (c, t, s) in rows
    ]  # fmt: skip
    findings = [
        {"boot": "b", "number": i, "incident_id": f"inc-{i:08d}", "time": t, "replica": "r", "kind": "k",
         "sequence": f"req-{i}", "severity": 2, "step": 1, "token": 1, "guard": "g", "version": 1, "is_primary": True,
         "evidence": {}}
        for i, (_, t, _) in rows
    ]  # fmt: skip
    connection = session.connection()
    connection.execute(sa.insert(IncidentRow.__table__), incidents)  # type: ignore[arg-type]
    connection.execute(sa.insert(FindingRow.__table__), findings)  # type: ignore[arg-type]
    per_bucket: dict[tuple[int, int], int] = {}
    for _, (cause, when, _) in rows:
        per_bucket[(bucket(when), cause)] = per_bucket.get((bucket(when), cause), 0) + 1
    add_buckets(session, per_bucket)


def add_buckets(session: Session, counted: dict[tuple[int, int], int]) -> None:
    from checkengine.replay.catalog.incident_rows import add_activity

    named = {(begin, cause, "findings"): count for (begin, cause), count in counted.items()}
    add_activity(session, named | {(begin, cause, "incidents"): count for (begin, cause), count in counted.items()})


QUESTIONS: dict[str, IncidentFilter] = {
    "all": IncidentFilter(),
    "open": IncidentFilter(status=["open", "acknowledged"]),
    "guard": IncidentFilter(guard=["salad"]),
    "guard_open": IncidentFilter(guard=["salad"], status=["open"]),
    "rare_guard": IncidentFilter(guard=["rare"]),
    "replica": IncidentFilter(replica=["host7:7"]),
    "device_and_driver": IncidentFilter(device=["gpu3"], driver=["driver-3"]),
    "never_meet": IncidentFilter(device=["gpu3"], driver=["driver-4"]),
    "kernel_and_severity": IncidentFilter(kernel=["flash"], least_severity=2, prefix="hit"),
    "oldest_week": IncidentFilter(guard=["latency"], until=NOW - (DAYS - 7) * 86400),
    "assignee": IncidentFilter(assignee="ann", guard=["salad"]),
    "nobodys": IncidentFilter(assignee="", status=["open"]),
    "request": IncidentFilter(request="req-123"),
}


def page_figures(catalog: Catalog, database: str, repeats: int = 5) -> list[dict[str, Any]]:
    """Milliseconds of the slowest question, its first, second and twentieth page; each the best of `repeats`, because
    what else runs on the machine only ever adds."""
    found: dict[str, float] = {}
    for name, chosen in QUESTIONS.items():
        for page, seconds in pages(catalog, chosen, repeats):
            found[f"{name}.{page}"] = seconds
    for name, question in other_questions():
        found[name] = best(catalog, question, repeats)
    slowest = max(found, key=lambda name: found[name])
    return [
        figure(f"store.{database}.slowest_page ({slowest})", 1000 * found[slowest], "ms", PAGE_MILLISECONDS),
        figure(f"store.{database}.median_page", 1000 * float(np.median(list(found.values()))), "ms", 20.0),
    ]


def pages(catalog: Catalog, chosen: IncidentFilter, repeats: int) -> Iterator[tuple[int, float]]:
    cursor = None
    for page in range(1, 21):
        if page in (1, 2, 20):
            at = cursor
            yield page, best(catalog, lambda session, at=at: incident_page(session, chosen, after=at), repeats)  # type: ignore[misc]
        with catalog.reading() as session:
            cursor = incident_page(session, chosen, after=cursor).next
        if cursor is None:
            return


def other_questions() -> Iterator[tuple[str, Question]]:
    yield "sparklines_day", lambda session: counts.activity(session, since=NOW - 86400, until=NOW)
    yield "active_hour", lambda session: counts.active_since(session, NOW - 3600)
    yield "by_id", lambda session: session.get(IncidentRow, "inc-00000777")


def best(catalog: Catalog, question: Question, repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        with catalog.reading() as session:
            began = time.perf_counter()
            question(session)
            seconds.append(time.perf_counter() - began)
    return min(seconds)
