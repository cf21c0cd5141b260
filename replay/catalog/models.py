"""Tables of the catalog. Times are Unix seconds; names and ids are as the engines gave them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    type_annotation_map = {float: Float(53), dict[str, Any]: JSON}  # noqa: RUF012


class IncidentRow(Base):
    """Findings of one cause. Counts are those of the rows that refer to it."""

    __tablename__ = "incidents"

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


class FindingRow(Base):
    __tablename__ = "findings"
    __table_args__ = (UniqueConstraint("boot", "number", name="uq_findings_boot_number"),)

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


class BundleRow(Base):
    __tablename__ = "bundles"

    id: Mapped[str] = mapped_column(String(256), primary_key=True)
    """Name of the bundle's folder."""
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"), index=True)
    path: Mapped[str]
    time: Mapped[float] = mapped_column(index=True)


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
    __table_args__ = (UniqueConstraint("boot", "number", name="uq_notices_boot_number"),)

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
