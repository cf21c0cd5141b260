"""Tables of what engines report. Times are Unix seconds; names and ids are as the engines gave them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, UniqueConstraint
from sqlalchemy.orm import Mapped, foreign, mapped_column, relationship

from checkengine.replay.catalog.base import Base

__all__ = [
    "ActionRow",
    "ActivityRow",
    "Base",
    "BundleRow",
    "CauseRow",
    "FindingRow",
    "IncidentRow",
    "NoticeRow",
    "ReplayRow",
    "SpoolRow",
]


class CauseRow(Base):
    """What an incident list is filtered by: incidents of one cause share one row, so a filter reads few rows however
    many incidents there are."""

    __tablename__ = "causes"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    """SHA-256 of all the others, so that two writers never make two."""
    fingerprint: Mapped[str] = mapped_column(String(16), index=True)
    """Of guard, kind, model and kernel: the same on every replica and after every restart. Mutes go by it."""
    guard: Mapped[str] = mapped_column(String(128), index=True)
    kind: Mapped[str] = mapped_column(String(128), index=True)
    severity: Mapped[int]
    model: Mapped[str] = mapped_column(String(256), index=True)
    replica: Mapped[str] = mapped_column(String(256), index=True)
    device: Mapped[str] = mapped_column(String(256), index=True)
    """The device's UUID, or its name where it has none."""
    driver: Mapped[str] = mapped_column(String(128), index=True)
    kernel: Mapped[str] = mapped_column(String(256), index=True)
    """Kernel backend."""
    prefix: Mapped[str] = mapped_column(String(8))
    """Of the first sequence: hit, miss, or empty where nobody told."""


class IncidentRow(Base):
    """Findings of one cause. Counts are those of the rows that refer to it."""

    __tablename__ = "incidents"
    __table_args__ = (
        Index("ix_incidents_seen", "last_seen", "id"),
        Index("ix_incidents_status_seen", "status", "last_seen", "id"),
        Index("ix_incidents_cause_seen", "cause_id", "last_seen", "id"),
        Index("ix_incidents_cause_status_seen", "cause_id", "status", "last_seen", "id"),
        Index("ix_incidents_assignee_seen", "assignee", "last_seen", "id", "cause_id", "status"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(128), index=True)
    replica: Mapped[str] = mapped_column(String(256), default="")
    first_seen: Mapped[float] = mapped_column(index=True)
    last_seen: Mapped[float]
    findings: Mapped[int] = mapped_column(default=0)
    """Findings with the deepest cause known on their sequence."""
    evidence: Mapped[int] = mapped_column(default=0)
    """Findings of lesser rank."""
    sequences: Mapped[int] = mapped_column(default=0)
    acknowledged: Mapped[float | None] = mapped_column(default=None)
    cause_id: Mapped[int | None] = mapped_column(Integer, default=None)
    """Of its first primary finding."""
    status: Mapped[str] = mapped_column(String(16), default="open")
    """open, acknowledged, muted or closed."""
    assignee: Mapped[str] = mapped_column(String(128), default="")
    sequence: Mapped[str] = mapped_column(String(512), default="", index=True)
    """Of its first primary finding."""
    trace_id: Mapped[str] = mapped_column(String(64), default="")
    """Of that sequence's request, where its client sent one."""
    held: Mapped[bool] = mapped_column(default=False)
    """No retention deletes it."""

    cause: Mapped[CauseRow | None] = relationship(
        primaryjoin=lambda: foreign(IncidentRow.cause_id) == CauseRow.id, lazy="joined", viewonly=True
    )


class FindingRow(Base):
    __tablename__ = "findings"
    __table_args__ = (
        UniqueConstraint("boot", "number", name="uq_findings_boot_number"),
        Index("ix_findings_incident_sequence", "incident_id", "sequence"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    boot: Mapped[str] = mapped_column(String(16))
    number: Mapped[int] = mapped_column(BigInteger)
    """With `boot`: the spool record that it came from."""
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"), index=True)
    time: Mapped[float] = mapped_column(index=True)
    replica: Mapped[str] = mapped_column(String(256), default="")
    kind: Mapped[str] = mapped_column(String(128), index=True)
    sequence: Mapped[str] = mapped_column(String(512), index=True)
    severity: Mapped[int]
    step: Mapped[int] = mapped_column(BigInteger)
    token: Mapped[int]
    guard: Mapped[str] = mapped_column(String(128))
    version: Mapped[int]
    primary: Mapped[bool] = mapped_column("is_primary")
    evidence: Mapped[dict[str, Any]]


class ActionRow(Base):
    __tablename__ = "actions"
    __table_args__ = (UniqueConstraint("boot", "number", name="uq_actions_boot_number"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    boot: Mapped[str] = mapped_column(String(16))
    number: Mapped[int] = mapped_column(BigInteger)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"), index=True)
    time: Mapped[float]
    kind: Mapped[str] = mapped_column(String(32))
    finding: Mapped[str] = mapped_column(String(128))
    sequence: Mapped[str] = mapped_column(String(512))
    keep_tokens: Mapped[int]


class ActivityRow(Base):
    """How many incidents began and findings came in five minutes: what sparklines are drawn from."""

    __tablename__ = "activity"

    bucket: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Unix seconds at which the five minutes begin."""
    cause_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    incidents: Mapped[int] = mapped_column(default=0)
    findings: Mapped[int] = mapped_column(default=0)


class BundleRow(Base):
    __tablename__ = "bundles"

    id: Mapped[str] = mapped_column(String(256), primary_key=True)
    """Name of the bundle's folder."""
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"), index=True)
    path: Mapped[str]
    time: Mapped[float] = mapped_column(index=True)
    replica: Mapped[str] = mapped_column(String(256), default="")
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    content: Mapped[str] = mapped_column(String(16), default="")
    """none or full; empty where the writer did not tell."""
    expires: Mapped[float | None] = mapped_column(default=None)
    held: Mapped[bool] = mapped_column(default=False)
    erased: Mapped[float | None] = mapped_column(default=None)
    """When the bundle, or its content, was erased."""


class ReplayRow(Base):
    __tablename__ = "replays"
    __table_args__ = (Index("ix_replays_bundle_time", "bundle", "time"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    bundle: Mapped[str] = mapped_column(String(256))
    """A bundle may be replayed where no catalog knows it."""
    time: Mapped[float]
    verdict: Mapped[str] = mapped_column(String(64))
    exit_code: Mapped[int]
    result: Mapped[dict[str, Any]]


class NoticeRow(Base):
    """What is no finding: a guard switched off, a brake pulled, an audit judged."""

    __tablename__ = "notices"
    __table_args__ = (
        UniqueConstraint("boot", "number", name="uq_notices_boot_number"),
        Index("ix_notices_kind_time", "kind", "time"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    boot: Mapped[str] = mapped_column(String(16))
    number: Mapped[int] = mapped_column(BigInteger)
    time: Mapped[float] = mapped_column(index=True)
    replica: Mapped[str] = mapped_column(String(256), default="")
    kind: Mapped[str] = mapped_column(String(64))
    sequence: Mapped[str] = mapped_column(String(512), default="")
    data: Mapped[dict[str, Any]]


class SpoolRow(Base):
    """How far the collector has read a spool file; moves in the same transaction as what it read."""

    __tablename__ = "spools"

    file: Mapped[str] = mapped_column(String(64), primary_key=True)
    offset: Mapped[int] = mapped_column("read_bytes", BigInteger, default=0)
    damaged: Mapped[int] = mapped_column(default=0)
