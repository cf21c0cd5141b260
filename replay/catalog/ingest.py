"""Spool records into rows; writing one twice changes nothing."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.replay.catalog.fleet import ReplicaRow, RequestRow
from checkengine.replay.catalog.incident_rows import note_findings, note_incidents, note_requests
from checkengine.replay.catalog.insert import insert_new
from checkengine.replay.catalog.models import ActionRow, Base, BundleRow, FindingRow, NoticeRow, ReplayRow, SpoolRow
from checkengine.replay.catalog.record_values import Values, table_and_values
from checkengine.replay.spool_format import Progress, SpoolRecord


@dataclass(slots=True)
class Ingested:
    fresh: int = 0
    """New rows."""
    rejected: int = 0
    """Records whose data is not that of their kind; nothing of them is written."""


def ingest(session: Session, records: Iterable[SpoolRecord]) -> Ingested:
    """Write records that are not there yet, in the session's transaction."""
    done = Ingested()
    rows: dict[type[Base], list[Values]] = defaultdict(list)
    for record in records:
        try:
            table, values = table_and_values(record)
        except (KeyError, TypeError, ValueError):
            done.rejected += 1
        else:
            rows[table].append(values)
    # First the replicas: a cause takes device, driver and kernel from its replica's row.
    save_replicas(session, rows[ReplicaRow])
    note_incidents(session, rows[FindingRow], rows[ActionRow], rows[BundleRow])
    done.fresh += note_findings(session, rows[FindingRow])
    for table in (ActionRow, BundleRow, NoticeRow):
        done.fresh += len(insert_new(session, table, without(rows[table], "incident_replica")))
    done.fresh += note_requests(session, rows[RequestRow])
    return done


def without(rows: list[Values], *names: str) -> list[Values]:
    return [{key: value for key, value in row.items() if key not in names} for row in rows]


def save_replicas(session: Session, rows: list[Values]) -> None:
    """The newest word of each replica; an older record that comes again changes nothing."""
    newest: dict[str, Values] = {}
    for values in rows:
        known = newest.get(values["name"])
        if known is None or values["last_seen"] >= known["last_seen"]:
            newest[values["name"]] = values
    for name in sorted(newest):
        values = newest[name]
        if not insert_new(session, ReplicaRow, [{"applied": 0, **values}]):
            older = sa.and_(ReplicaRow.name == name, ReplicaRow.last_seen < values["last_seen"])
            session.execute(sa.update(ReplicaRow).where(older).values(values))


def save_progress(session: Session, file: str, progress: Progress) -> None:
    values = {"file": file, "read_bytes": progress.offset, "damaged": progress.damaged}
    if not insert_new(session, SpoolRow, [values]):
        session.execute(
            sa.update(SpoolRow)
            .where(SpoolRow.file == file)
            .values({SpoolRow.offset: progress.offset, SpoolRow.damaged: progress.damaged})
        )


def forget_progress(session: Session, file: str) -> None:
    session.execute(sa.delete(SpoolRow).where(SpoolRow.file == file))


def record_replay(
    session: Session, *, bundle: str, time: float, verdict: str, exit_code: int, result: Mapping[str, Any]
) -> str:
    """Returns the new row's id. `result` must be plain JSON."""
    identifier = uuid.uuid4().hex
    session.add(
        ReplayRow(id=identifier, bundle=bundle, time=time, verdict=verdict, exit_code=exit_code, result=dict(result))
    )
    return identifier
