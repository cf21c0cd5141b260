"""Spool records into rows; writing one twice changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from checkengine.replay.catalog.models import (
    ActionRow,
    Base,
    BundleRow,
    FindingRow,
    IncidentRow,
    NoticeRow,
    ReplayRow,
    SpoolRow,
)
from checkengine.replay.spool_format import Progress, SpoolRecord

LIMITS = {sa.Integer: 1 << 31, sa.BigInteger: 1 << 63}
NO_INCIDENT = "inc-none"
"""What belongs to no incident (a bundle written by hand) hangs on this one."""


@dataclass(slots=True)
class Ingested:
    fresh: int = 0
    """New rows."""
    rejected: int = 0
    """Records whose data is not that of their kind; nothing of them is written."""


def ingest(session: Session, records: Iterable[SpoolRecord]) -> Ingested:
    """Write records that are not there yet, in the session's transaction."""
    touched: set[str] = set()
    done = Ingested()
    for record in records:
        try:
            table, values = row_of(record)
            checked = cleaned(table, values)
        except (KeyError, TypeError, ValueError):
            done.rejected += 1
            continue
        if "incident_id" in checked:
            touched.add(checked["incident_id"])
            note_incident(session, checked["incident_id"], checked, record)
        done.fresh += insert(session, table, checked)
    for identifier in sorted(touched):
        count_again(session, identifier)
    return done


def row_of(record: SpoolRecord) -> tuple[type[Base], dict[str, Any]]:
    match record.kind:
        case "finding":
            return FindingRow, finding_values(record)
        case "action":
            return ActionRow, action_values(record)
        case "bundle":
            return BundleRow, bundle_values(record)
        case _:
            return NoticeRow, notice_values(record)


def cleaned(table: type[Base], values: dict[str, Any]) -> dict[str, Any]:
    """Text that every database takes, cut to its column; ValueError for a number that no column takes."""
    columns = sa.inspect(table).local_table.columns
    for name, value in values.items():
        kind = columns[name].type
        if isinstance(value, str):
            text = value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
            values[name] = text[: kind.length] if isinstance(kind, sa.String) else text
        elif isinstance(kind, sa.Integer) and not -LIMITS[type(kind)] <= value < LIMITS[type(kind)]:
            raise ValueError(f"{name} is {value}")
    return values


def spool_values(record: SpoolRecord) -> dict[str, Any]:
    return {"boot": record.boot, "number": record.number, "time": record.time}


def finding_values(record: SpoolRecord) -> dict[str, Any]:
    data = record.data
    return spool_values(record) | {
        "incident_id": str(data["incident"] or NO_INCIDENT),
        "replica": record.replica,
        "kind": str(data["kind"]),
        "sequence": record.request,
        "severity": int(data["severity"]),
        "step": int(data["step"]),
        "token": int(data["token"]),
        "guard": str(data["guard"]),
        "version": int(data["version"]),
        "is_primary": bool(data["primary"]),
        "evidence": dict(data["evidence"]),
    }


def action_values(record: SpoolRecord) -> dict[str, Any]:
    data = record.data
    return spool_values(record) | {
        "incident_id": str(data["incident"] or NO_INCIDENT),
        "kind": str(data["kind"]),
        "finding": str(data["finding"]),
        "sequence": record.request,
        "keep_tokens": int(data["keep_tokens"]),
    }


def bundle_values(record: SpoolRecord) -> dict[str, Any]:
    data = record.data
    return {
        "id": str(data["bundle"]),
        "incident_id": str(data["incident"] or NO_INCIDENT),
        "path": str(data["path"]),
        "time": record.time,
    }


def notice_values(record: SpoolRecord) -> dict[str, Any]:
    return spool_values(record) | {
        "replica": record.replica,
        "kind": record.kind,
        "sequence": record.request,
        "data": dict(record.data),
    }


def note_incident(session: Session, identifier: str, row: Mapping[str, Any], record: SpoolRecord) -> None:
    """A row to refer to; `count_again` gives it its numbers."""
    kind = row["kind"] if record.kind == "finding" else row.get("finding", "")
    values = {"id": identifier, "kind": kind, "replica": record.replica, "findings": 0, "evidence": 0, "sequences": 0}
    values |= {"first_seen": record.time, "last_seen": record.time}
    insert(session, IncidentRow, cleaned(IncidentRow, values))


def count_again(session: Session, identifier: str) -> None:
    """Counts and times from the rows themselves, so that no order and no repetition of records changes them."""
    mine, primary = FindingRow.incident_id == identifier, FindingRow.primary.is_(True)
    found = session.execute(
        sa.select(
            sa.func.count().filter(primary),
            sa.func.count().filter(sa.not_(primary)),
            sa.func.count(sa.distinct(FindingRow.sequence)).filter(primary),
            sa.func.min(FindingRow.time),
            sa.func.max(FindingRow.time),
        ).where(mine)
    ).one()
    if found[3] is None:
        return
    first = sa.select(FindingRow.kind).where(mine).order_by(sa.not_(primary), FindingRow.time, FindingRow.id).limit(1)
    session.execute(
        sa.update(IncidentRow)
        .where(IncidentRow.id == identifier)
        .values(
            findings=found[0],
            evidence=found[1],
            sequences=found[2],
            first_seen=found[3],
            last_seen=found[4],
            kind=first.scalar_subquery(),
        )
    )


def save_progress(session: Session, file: str, progress: Progress) -> None:
    values = {"file": file, "read_bytes": progress.offset, "damaged": progress.damaged}
    if not insert(session, SpoolRow, values):
        session.execute(
            sa.update(SpoolRow)
            .where(SpoolRow.file == file)
            .values(read_bytes=progress.offset, damaged=progress.damaged)
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


def insert(session: Session, table: type[Base], values: Mapping[str, Any]) -> int:
    """1 where the row is new, 0 where one with its key was there. Values by column name."""
    dialect = session.get_bind().dialect.name
    target: Any = sa.inspect(table).local_table
    if dialect == "postgresql":
        made: Any = postgresql.insert(target).values(values).on_conflict_do_nothing()
    else:
        made = sqlite.insert(target).values(values).on_conflict_do_nothing()
    result: Any = session.execute(made)
    return int(result.rowcount)
