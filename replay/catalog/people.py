"""Tables of people: who may do what, who did what, and what they said. Times are Unix seconds."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from checkengine.replay.catalog.base import Base


class UserRow(Base):
    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    role: Mapped[str] = mapped_column(String(16))
    """viewer, operator or admin."""
    token_hash: Mapped[str] = mapped_column(String(128), default="", index=True)
    """SHA-256 of a random token; empty for one who signs in by OIDC."""
    subject: Mapped[str] = mapped_column(String(256), default="", index=True)
    """Issuer and subject of OIDC."""
    created: Mapped[float]
    disabled: Mapped[float | None] = mapped_column(default=None)


class SessionRow(Base):
    """A sign-in of the dashboard. Only a hash of its cookie is kept."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the cookie."""
    user_id: Mapped[int | None] = mapped_column(Integer, ForeignKey("users.id"), default=None, index=True)
    name: Mapped[str] = mapped_column(String(128), default="")
    role: Mapped[str] = mapped_column(String(16))
    csrf: Mapped[str] = mapped_column(String(64), default="")
    created: Mapped[float]
    last_seen: Mapped[float]
    expires: Mapped[float] = mapped_column(index=True)
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)


class CommentRow(Base):
    __tablename__ = "comments"
    __table_args__ = (Index("ix_comments_incident_time", "incident_id", "time"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id"))
    author: Mapped[str] = mapped_column(String(128))
    time: Mapped[float]
    text: Mapped[str] = mapped_column(Text)


class MuteRow(Base):
    """While it holds, incidents of its fingerprint are born muted."""

    __tablename__ = "mutes"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    fingerprint: Mapped[str] = mapped_column(String(16), index=True)
    expires: Mapped[float]
    reason: Mapped[str] = mapped_column(Text, default="")
    actor: Mapped[str] = mapped_column(String(128))
    time: Mapped[float]
    lifted: Mapped[float | None] = mapped_column(default=None)
    """When it ended: by hand, or because it expired."""


class AuditRow(Base):
    """Who did what. Rows are added and, by retention, deleted; never changed."""

    __tablename__ = "audit_log"
    __table_args__ = (Index("ix_audit_log_subject", "subject_kind", "subject", "time"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    time: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16), default="")
    remote: Mapped[str] = mapped_column(String(64), default="")
    """Address that it came from."""
    action: Mapped[str] = mapped_column(String(64))
    subject_kind: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(256))
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)


class SavedViewRow(Base):
    """A filter of the incident list under a name."""

    __tablename__ = "saved_views"
    __table_args__ = (Index("ix_saved_views_owner_name", "owner", "name", unique=True),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    owner: Mapped[str] = mapped_column(String(128))
    name: Mapped[str] = mapped_column(String(128))
    query: Mapped[str] = mapped_column(Text)
    """Query string of the page's URL."""
    shared: Mapped[bool] = mapped_column(default=False)
    time: Mapped[float]
