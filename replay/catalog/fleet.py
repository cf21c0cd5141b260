"""Tables of the fleet: replicas, requests, switches and jobs. Times are Unix seconds."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from checkengine.replay.catalog.base import Base

EVERY_REPLICA = "*"
BIG_KEY = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite counts up only what it calls INTEGER, which is 64 bits there."""


class ReplicaRow(Base):
    """The register of engine processes: what each last told of itself."""

    __tablename__ = "replicas"

    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    boot: Mapped[str] = mapped_column(String(16), default="")
    host: Mapped[str] = mapped_column(String(256), default="")
    engine: Mapped[str] = mapped_column(String(64), default="")
    model: Mapped[str] = mapped_column(String(256), default="", index=True)
    device: Mapped[str] = mapped_column(String(256), default="", index=True)
    """The device's UUID, or its name where it has none."""
    device_name: Mapped[str] = mapped_column(String(256), default="")
    driver: Mapped[str] = mapped_column(String(128), default="")
    image: Mapped[str] = mapped_column(String(512), default="")
    kernel: Mapped[str] = mapped_column(String(256), default="")
    versions: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Library to version."""
    kernels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Kernel choices and whatever else of the environment decides numbers."""
    counters: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """ECC, XID and NVLink counters where the device has them."""
    guards: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Guard to its state (active, action, braked, would_have_stopped)."""
    state: Mapped[str] = mapped_column(String(16), default="serving")
    """serving, drained or gone."""
    applied: Mapped[int] = mapped_column(BigInteger, default=0)
    """Revision of the last control that it obeyed."""
    started: Mapped[float] = mapped_column(default=0.0)
    last_seen: Mapped[float] = mapped_column(default=0.0, index=True)


class RequestRow(Base):
    """One sequence of one request, without content; kept for a week, to look up yesterday's complaint."""

    __tablename__ = "requests"
    __table_args__ = (UniqueConstraint("boot", "number", name="uq_requests_boot_number"),)

    id: Mapped[int] = mapped_column(BIG_KEY, primary_key=True, autoincrement=True)
    boot: Mapped[str] = mapped_column(String(16))
    number: Mapped[int] = mapped_column(BigInteger)
    sequence: Mapped[str] = mapped_column(String(512), index=True)
    request: Mapped[str] = mapped_column(String(512), index=True)
    response: Mapped[str] = mapped_column(String(512), default="", index=True)
    trace_id: Mapped[str] = mapped_column(String(64), default="", index=True)
    replica: Mapped[str] = mapped_column(String(256), default="")
    model: Mapped[str] = mapped_column(String(256), default="")
    configuration: Mapped[str] = mapped_column(String(64), default="")
    """Digest of the guards' and engine's settings."""
    time: Mapped[float] = mapped_column(index=True)
    """When it ended."""
    prompt_tokens: Mapped[int] = mapped_column(default=0)
    output_tokens: Mapped[int] = mapped_column(default=0)
    cached_tokens: Mapped[int] = mapped_column(default=0)
    ttft_seconds: Mapped[float | None] = mapped_column(default=None)
    total_seconds: Mapped[float | None] = mapped_column(default=None)
    finish_reason: Mapped[str] = mapped_column(String(64), default="")
    error: Mapped[str] = mapped_column(String(64), default="")
    scores: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Guard to the highest number it read."""
    fingerprint: Mapped[str] = mapped_column(String(64), default="")
    """Keyed chain over the fingerprints of its rows."""


class ControlRow(Base):
    """What an operator wants, never overwritten: of one (replica, subject, name) the newest row holds.

    `subject` is guard, sidecar, brake, capture or replica; `desired` is, for example, {"state": "off"}.
    """

    __tablename__ = "controls"
    __table_args__ = (
        Index("ix_controls_target", "replica", "subject", "name"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    """The revision."""
    replica: Mapped[str] = mapped_column(String(256))
    """`*` is every replica."""
    subject: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(128), default="")
    desired: Mapped[dict[str, Any]]
    expires: Mapped[float | None] = mapped_column(default=None)
    actor: Mapped[str] = mapped_column(String(128), default="")
    time: Mapped[float]


class JobRow(Base):
    """A replay that somebody asked for; a worker claims it, tells its progress and leaves a verdict."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_state_time", "state", "created"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(32), default="replay")
    bundle: Mapped[str] = mapped_column(String(256), default="", index=True)
    incident_id: Mapped[str] = mapped_column(String(64), default="", index=True)
    target: Mapped[str] = mapped_column(String(256), default="local")
    """local, replica:NAME or device:NAME OF ITS CLASS: which worker may take it."""
    state: Mapped[str] = mapped_column(String(16), default="queued")
    """queued, running, done, failed or cancelled."""
    progress: Mapped[float] = mapped_column(default=0.0)
    """0 to 1."""
    message: Mapped[str] = mapped_column(Text, default="")
    options: Mapped[dict[str, Any]] = mapped_column(default=dict)
    worker: Mapped[str] = mapped_column(String(256), default="")
    actor: Mapped[str] = mapped_column(String(128), default="")
    created: Mapped[float]
    started: Mapped[float | None] = mapped_column(default=None)
    heartbeat: Mapped[float | None] = mapped_column(default=None)
    ended: Mapped[float | None] = mapped_column(default=None)
    verdict: Mapped[str] = mapped_column(String(64), default="")
    exit_code: Mapped[int | None] = mapped_column(default=None)
    result: Mapped[dict[str, Any]] = mapped_column(default=dict)
