"""Incidents from their findings: counts, times and cause move with every row that is new, in its transaction.

One incident's records come from one process's spool, so no two collectors count in one row at once; rows that many
share (causes, activity) are written in a fixed order, so that writers never deadlock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.replay.catalog.causes import Cause, cause_ids, cause_of
from checkengine.replay.catalog.fleet import ReplicaRow, RequestRow
from checkengine.replay.catalog.insert import among, insert_new, statement
from checkengine.replay.catalog.models import ActivityRow, FindingRow, IncidentRow
from checkengine.replay.catalog.people import MuteRow
from checkengine.replay.catalog.record_values import Values, cleaned

BUCKET_SECONDS = 300


@dataclass(slots=True)
class Change:
    """What a batch does to one incident: findings that were not there before."""

    row: IncidentRow
    primary: list[Values]
    evidence: list[Values]

    @property
    def times(self) -> list[float]:
        return [values["time"] for values in (*self.primary, *self.evidence)]

    @property
    def is_first(self) -> bool:
        return not self.row.findings and not self.row.evidence

    @property
    def names_cause(self) -> Values | None:
        """The first primary finding names the incident's cause; until there is one the first evidence does."""
        candidates = self.primary if not self.row.findings else []
        if not candidates and self.is_first:
            candidates = self.evidence
        return min(candidates, key=lambda values: values["time"]) if candidates else None


@dataclass(frozen=True, slots=True)
class Named:
    """What an incident is filed under."""

    cause: Cause
    cause_id: int
    sequence: str
    trace_id: str
    muted: bool


def note_incidents(
    session: Session, findings: Sequence[Values], actions: Sequence[Values], bundles: Sequence[Values]
) -> None:
    """A row to refer to for every incident that is named."""
    first: dict[str, Values] = {}
    for rows, kind, replica in ((findings, "kind", "replica"), (actions, "finding", "incident_replica")):
        for row in rows:
            if row["incident_id"] not in first:
                first[row["incident_id"]] = bare(row, row[kind], row[replica])
    for row in bundles:
        if row["incident_id"] not in first:
            first[row["incident_id"]] = bare(row, "", row["replica"])
    insert_new(session, IncidentRow, [first[name] for name in sorted(first)])


def bare(row: Values, kind: str, replica: str) -> Values:
    values: Values = {"id": row["incident_id"], "kind": kind, "replica": replica, "status": "open", "assignee": ""}
    values |= {"findings": 0, "evidence": 0, "sequences": 0, "first_seen": row["time"], "last_seen": row["time"]}
    return cleaned(IncidentRow, values | {"sequence": "", "trace_id": "", "held": False})


def note_findings(session: Session, rows: Sequence[Values]) -> int:
    """Insert findings and count those that are new in their incidents; returns how many were."""
    if not rows:
        return 0
    known = known_sequences(session, rows)
    fresh = set(insert_new(session, FindingRow, rows, ("boot", "number")))
    new: dict[str, dict[tuple[str, int], Values]] = defaultdict(dict)
    for row in rows:
        if (key := (row["boot"], row["number"])) in fresh:
            new[row["incident_id"]].setdefault(key, row)
    if new:
        count_in_incidents(session, {name: list(found.values()) for name, found in new.items()}, known)
    return len(fresh)


def known_sequences(session: Session, rows: Iterable[Values]) -> set[tuple[str, str]]:
    """Pairs of incident and sequence that have a primary finding already."""
    pairs = sorted({(row["incident_id"], row["sequence"]) for row in rows if row["is_primary"]})
    if not pairs:
        return set()
    query = sa.select(FindingRow.incident_id, FindingRow.sequence).distinct()
    named = among(session, (FindingRow.incident_id, FindingRow.sequence), pairs)
    found = session.execute(query.where(named, FindingRow.primary.is_(True)))
    return {(row.incident_id, row.sequence) for row in found}


def count_in_incidents(session: Session, new: Mapping[str, Sequence[Values]], known: set[tuple[str, str]]) -> None:
    query = sa.select(IncidentRow).where(IncidentRow.id.in_(new)).order_by(IncidentRow.id)
    # Not FOR UPDATE: findings and comments of others may refer to the rows meanwhile.
    query = query.with_for_update(of=IncidentRow, key_share=True)
    rows = session.scalars(query.execution_options(populate_existing=True))
    changes = [change_of(row, new[row.id]) for row in rows]
    named = names_of(session, changes)
    activity: Counter[tuple[int, int, str]] = Counter()
    for change in changes:
        apply(change, named.get(change.row.id), known, activity)
    session.flush()
    add_activity(session, activity)


def change_of(row: IncidentRow, found: Sequence[Values]) -> Change:
    primary = [values for values in found if values["is_primary"]]
    return Change(row, primary, [values for values in found if not values["is_primary"]])


def apply(
    change: Change, named: Named | None, known: set[tuple[str, str]], activity: Counter[tuple[int, int, str]]
) -> None:
    row, times = change.row, change.times
    began = change.is_first
    if named is not None:
        row.kind, row.cause_id, row.sequence = named.cause.kind, named.cause_id, named.sequence
        row.trace_id = named.trace_id
        row.status = "muted" if named.muted and row.status == "open" else row.status
    row.first_seen = min(times) if began else min(row.first_seen, *times)
    row.last_seen = max(times) if began else max(row.last_seen, *times)
    row.findings += len(change.primary)
    row.evidence += len(change.evidence)
    row.sequences += len({(row.id, values["sequence"]) for values in change.primary} - known)
    if row.cause_id is not None:
        activity[(bucket(min(times)), row.cause_id, "incidents")] += began
        for values in change.primary:
            activity[(bucket(values["time"]), row.cause_id, "findings")] += 1


def bucket(time: float) -> int:
    return int(time // BUCKET_SECONDS) * BUCKET_SECONDS


def names_of(session: Session, changes: Sequence[Change]) -> dict[str, Named]:
    """By incident, of those whose cause becomes known."""
    first = {change.row.id: word for change in changes if (word := change.names_cause) is not None}
    if not first:
        return {}
    replicas = replicas_named(session, {word["replica"] for word in first.values()})
    requests = requests_of(session, {word["sequence"] for word in first.values()})
    causes: dict[str, Cause] = {}
    for incident, word in first.items():
        cause = Cause(word["guard"], word["kind"], word["severity"], replica=word["replica"])
        cause = cause.placed(replicas.get(word["replica"]))
        causes[incident] = prefixed(cause, requests.get((word["replica"], word["sequence"])))
    ids = cause_ids(session, set(causes.values()))
    muted = muted_at(session, {cause.fingerprint for cause in causes.values()})
    return {
        incident: Named(
            cause,
            ids[cause],
            first[incident]["sequence"],
            trace_of(requests.get((cause.replica, first[incident]["sequence"]))),
            first[incident]["time"] < muted.get(cause.fingerprint, 0.0),
        )
        for incident, cause in causes.items()
    }


def replicas_named(session: Session, names: set[str]) -> dict[str, ReplicaRow]:
    return {row.name: row for row in session.scalars(sa.select(ReplicaRow).where(ReplicaRow.name.in_(names)))}


def requests_of(session: Session, sequences: set[str]) -> dict[tuple[str, str], RequestRow]:
    found = session.scalars(sa.select(RequestRow).where(RequestRow.sequence.in_(sequences)).order_by(RequestRow.time))
    return {(row.replica, row.sequence): row for row in found}


def prefixed(cause: Cause, request: RequestRow | None) -> Cause:
    return cause if request is None else replace(cause, prefix="hit" if request.cached_tokens else "miss")


def trace_of(request: RequestRow | None) -> str:
    return "" if request is None else request.trace_id


def muted_at(session: Session, fingerprints: set[str]) -> dict[str, float]:
    """Until when each is muted."""
    query = sa.select(MuteRow.fingerprint, sa.func.max(MuteRow.expires).label("until"))
    query = query.where(MuteRow.fingerprint.in_(fingerprints), MuteRow.lifted.is_(None))
    return {row.fingerprint: row.until for row in session.execute(query.group_by(MuteRow.fingerprint))}


def add_activity(session: Session, counts: Mapping[tuple[int, int, str], int]) -> None:
    keys = sorted({(begin, cause) for begin, cause, _ in counts})
    if not keys:
        return
    rows = [
        {
            "bucket": begin,
            "cause_id": cause,
            "incidents": counts.get((begin, cause, "incidents"), 0),
            "findings": counts.get((begin, cause, "findings"), 0),
        }
        for begin, cause in keys
    ]
    made = statement(session, ActivityRow)
    added = {name: getattr(ActivityRow, name) + getattr(made.excluded, name) for name in ("incidents", "findings")}
    session.connection().execute(made.on_conflict_do_update(index_elements=["bucket", "cause_id"], set_=added), rows)


def note_requests(session: Session, rows: Sequence[Values]) -> int:
    """Insert requests; an incident that began on one of them learns its trace and whether its prefix was cached."""
    fresh = insert_new(session, RequestRow, rows, ("boot", "number", "sequence"))
    if not fresh:
        return 0
    sequences = {sequence for _, _, sequence in fresh if sequence}
    query = sa.select(IncidentRow).where(IncidentRow.sequence.in_(sequences), IncidentRow.sequence != "")
    incidents = session.scalars(query.order_by(IncidentRow.id)).all() if sequences else []
    if incidents:
        requests = requests_of(session, {row.sequence for row in incidents})
        place_again(session, [(row, requests.get((row.replica, row.sequence))) for row in incidents])
    return len(fresh)


def place_again(session: Session, pairs: Sequence[tuple[IncidentRow, RequestRow | None]]) -> None:
    placed = [
        (row, request, prefixed(cause_of(row.cause), request))
        for row, request in pairs
        if row.cause is not None and request is not None
    ]
    ids = cause_ids(session, {cause for _, _, cause in placed})
    for row, request, cause in placed:
        row.cause_id, row.trace_id = ids[cause], trace_of(request)
    session.flush()
