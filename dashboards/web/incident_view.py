"""All that an incident's page tells from the catalog."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.dashboards.web import words
from checkengine.dashboards.web.lines import Line, lines_of
from checkengine.guards.finding import Severity, cause_rank
from checkengine.replay.catalog import jobs, marks, queries, register
from checkengine.replay.catalog.fleet import JobRow, ReplicaRow, RequestRow
from checkengine.replay.catalog.incident_list import IncidentFilter, incident_page
from checkengine.replay.catalog.models import ActionRow, BundleRow, FindingRow, IncidentRow, ReplayRow

MOST_FINDINGS = 2000
MOST_SEQUENCES = 50
HEALTHY_SECONDS = 86400.0
"""A sibling without an incident of this cause for so long counts as healthy."""


@dataclass(frozen=True, slots=True)
class CauseStep:
    """Findings of one kind, in the order of causes."""

    kind: str
    words: str
    guard: str
    severity: str
    count: int
    step: int
    token: int
    sequence: str
    time: float
    evidence: str
    first: bool
    """The deepest one: it explains the others."""


@dataclass(frozen=True, slots=True)
class Victim:
    name: str
    request: RequestRow | None
    findings: int
    first_token: int
    action: str


@dataclass(frozen=True, slots=True)
class BundleLine:
    row: BundleRow
    replays: list[ReplayRow]
    job: JobRow | None
    """The newest."""


def causes_of(findings: Sequence[FindingRow]) -> list[CauseStep]:
    """The deepest cause first; each with its first finding."""
    first: dict[tuple[str, str], FindingRow] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for row in findings:
        key = (row.kind, row.guard)
        first.setdefault(key, row)
        counts[key] += 1
    ordered = sorted(first.items(), key=lambda item: (cause_rank(item[0][0]), item[1].time))
    return [cause_step(row, counts[key], place == 0) for place, (key, row) in enumerate(ordered)]


def cause_step(row: FindingRow, count: int, first: bool) -> CauseStep:
    severity = Severity(row.severity).name.lower() if 0 <= row.severity <= 2 else str(row.severity)
    told = ", ".join(f"{name} {number(value)}" for name, value in list(dict(row.evidence).items())[:12])
    where = (row.step, row.token, row.sequence, row.time)
    return CauseStep(row.kind, words.kind(row.kind), row.guard, severity, count, *where, told, first)


def number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def victims_of(session: Session, findings: Sequence[FindingRow], actions: Sequence[ActionRow]) -> list[Victim]:
    """Sequences on which this is the deepest cause known, the first hit first."""
    found: dict[str, list[FindingRow]] = {}
    for row in findings:
        if row.primary:
            found.setdefault(row.sequence, []).append(row)
    names = list(found)[:MOST_SEQUENCES]
    query = sa.select(RequestRow).where(RequestRow.sequence.in_(names))
    requests = {row.sequence: row for row in session.scalars(query)}
    taken: dict[str, str] = {}
    for action in actions:
        taken.setdefault(action.sequence, action.kind)
    return [
        Victim(name, requests.get(name), len(found[name]), found[name][0].token, taken.get(name, "")) for name in names
    ]


def bundle_lines(session: Session, incident: str) -> list[BundleLine]:
    newest: dict[str, JobRow] = {}
    for job in jobs.jobs(session, incident_id=incident):
        newest.setdefault(job.bundle, job)
    return [
        BundleLine(row, queries.replays(session, row.id, limit=10), newest.get(row.id))
        for row in queries.bundles(session, incident)
    ]


def story(line: Line, causes: Sequence[CauseStep], actions: Sequence[ActionRow], sequences: int) -> str:
    """What happened, in one sentence."""
    row = line.row
    told = line.sentence
    if row.replica:
        told += f" of replica {row.replica}"
    if causes:
        told += f", first at step {causes[0].step}, output token {causes[0].token} of {causes[0].sequence}"
    done = Counter(action.kind for action in actions)
    verbs = {"stop": "stopped", "retry": "retried", "quarantine": "quarantined", "warn": "warned of"}
    taken = [f"{verbs[kind]} {words.count(count, 'sequence')}" for kind, count in done.items() if kind in verbs]
    return f"{told}; the guard {' and '.join(taken)}." if taken else f"{told}; the guard only watched."


def environment(session: Session, row: IncidentRow, now: float) -> dict[str, Any]:
    """What tells its replica from siblings that serve the same model and are healthy."""
    mine = register.replica(session, row.replica)
    if mine is None:
        return {"replica": None, "differences": [], "healthy": 0}
    sick = sick_replicas(session, row, now)
    alike = [each for each in register.replicas(session, now - HEALTHY_SECONDS) if alike_and_well(each, mine, sick)]
    return {"replica": mine, "differences": register.environment_difference(mine, alike), "healthy": len(alike)}


def alike_and_well(each: ReplicaRow, mine: ReplicaRow, sick: set[str]) -> bool:
    return each.name != mine.name and each.model == mine.model and each.name not in sick


def sick_replicas(session: Session, row: IncidentRow, now: float) -> set[str]:
    """Where the same cause was seen lately."""
    if row.cause is None:
        return set()
    same = IncidentFilter(fingerprint=(row.cause.fingerprint,), since=now - HEALTHY_SECONDS)
    return {each.replica for each in incident_page(session, same, limit=200).rows}


def siblings(session: Session, row: IncidentRow) -> list[Line]:
    """Other incidents of the same cause."""
    if row.cause is None:
        return []
    page = incident_page(session, IncidentFilter(fingerprint=(row.cause.fingerprint,)), limit=11)
    return lines_of(session, [each for each in page.rows if each.id != row.id][:10])


def commands(path: str) -> list[tuple[str, str]]:
    quoted = shlex.quote(path)
    return [
        ("Replay and judge", f"checkengine replay {quoted}"),
        ("Find the guilty commit", f"git bisect run checkengine replay {quoted}"),
        ("Shrink it to a reproducer without content", f"checkengine minimise {quoted} --content-free"),
        ("Hand it on without content", f"checkengine bundles export {quoted} -o case.checkengine"),
    ]


def incident_values(session: Session, row: IncidentRow, now: float) -> dict[str, Any]:
    findings, actions = queries.findings(session, row.id, MOST_FINDINGS), queries.actions(session, row.id)
    line, causes = lines_of(session, [row])[0], causes_of(findings)
    return {
        "now": now,
        "line": line,
        "causes": causes,
        "story": story(line, causes, actions, row.sequences),
        "victims": victims_of(session, findings, actions),
        "bundles": bundle_lines(session, row.id),
        "comments": marks.comments(session, row.id),
        "history": marks.audit_log(session, subject_kind="incident", subject=row.id, limit=50),
        "siblings": siblings(session, row),
        **environment(session, row, now),
    }
