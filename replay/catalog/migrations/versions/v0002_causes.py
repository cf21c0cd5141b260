"""Causes and activity; status, assignee and place of an incident; size, content and holds of a bundle."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def incident_columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("cause_id", sa.Integer(), nullable=True),
        sa.Column("status", sa.String(16), nullable=False, server_default="open"),
        sa.Column("assignee", sa.String(128), nullable=False, server_default=""),
        sa.Column("sequence", sa.String(512), nullable=False, server_default=""),
        sa.Column("trace_id", sa.String(64), nullable=False, server_default=""),
        sa.Column("held", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def bundle_columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("replica", sa.String(256), nullable=False, server_default=""),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("content", sa.String(16), nullable=False, server_default=""),
        sa.Column("expires", sa.Float(53), nullable=True),
        sa.Column("held", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("erased", sa.Float(53), nullable=True),
    )


INDEXES = (
    ("ix_incidents_seen", "incidents", ["last_seen", "id"]),
    ("ix_incidents_status_seen", "incidents", ["status", "last_seen", "id"]),
    ("ix_incidents_cause_seen", "incidents", ["cause_id", "last_seen", "id"]),
    ("ix_incidents_cause_status_seen", "incidents", ["cause_id", "status", "last_seen", "id"]),
    ("ix_incidents_assignee_seen", "incidents", ["assignee", "last_seen", "id", "cause_id", "status"]),
    ("ix_incidents_sequence", "incidents", ["sequence"]),
    ("ix_findings_incident_sequence", "findings", ["incident_id", "sequence"]),
    ("ix_notices_kind_time", "notices", ["kind", "time"]),
)


def upgrade() -> None:
    make_causes()
    for table, columns in (("incidents", incident_columns()), ("bundles", bundle_columns())):
        for column in columns:
            op.add_column(table, column)
    fill_causes(op.get_bind())
    for name, table, keys in INDEXES:
        op.create_index(name, table, keys)


def make_causes() -> None:
    op.create_table(
        "causes",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False, unique=True),
        sa.Column("fingerprint", sa.String(16), nullable=False, index=True),
        sa.Column("guard", sa.String(128), nullable=False, index=True),
        sa.Column("kind", sa.String(128), nullable=False, index=True),
        sa.Column("severity", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(256), nullable=False, index=True),
        sa.Column("replica", sa.String(256), nullable=False, index=True),
        sa.Column("device", sa.String(256), nullable=False, index=True),
        sa.Column("driver", sa.String(128), nullable=False, index=True),
        sa.Column("kernel", sa.String(256), nullable=False, index=True),
        sa.Column("prefix", sa.String(8), nullable=False),
    )
    op.create_table(
        "activity",
        sa.Column("bucket", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("cause_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("incidents", sa.Integer(), nullable=False),
        sa.Column("findings", sa.Integer(), nullable=False),
    )


def fill_causes(connection: sa.Connection) -> None:
    """Guard, severity and sequence of an incident's first primary finding; of device and kernel nothing is known."""
    old = sa.text(
        "SELECT i.id, i.kind, i.replica, f.guard, f.severity, f.sequence, i.acknowledged FROM incidents i "
        "LEFT JOIN findings f ON f.id = (SELECT MIN(g.id) FROM findings g WHERE g.incident_id = i.id AND g.is_primary)"
    )
    known: dict[str, int] = {}
    for identifier, kind, replica, guard, severity, sequence, acknowledged in connection.execute(old).all():
        parts = [guard or "", kind, severity or 0, "", replica, "", "", "", ""]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        if key not in known:
            known[key] = add_cause(connection, key, parts)
        values = {"cause": known[key], "sequence": sequence or "", "id": identifier}
        values["status"] = "open" if acknowledged is None else "acknowledged"
        update = "UPDATE incidents SET cause_id = :cause, sequence = :sequence, status = :status WHERE id = :id"
        connection.execute(sa.text(update), values)


def add_cause(connection: sa.Connection, key: str, parts: list[str | int]) -> int:
    guard, kind, severity, model, replica, _, _, kernel, _ = parts
    fingerprint = hashlib.sha256(json.dumps([guard, kind, model, kernel]).encode()).hexdigest()[:16]
    insert = sa.text(
        'INSERT INTO causes ("key", fingerprint, guard, kind, severity, model, replica, device, driver, kernel, prefix)'
        " VALUES (:key, :fingerprint, :guard, :kind, :severity, '', :replica, '', '', '', '') RETURNING id"
    )
    values = {"key": key, "fingerprint": fingerprint, "guard": guard, "kind": kind}
    return int(connection.execute(insert, values | {"severity": severity, "replica": replica}).scalar_one())


def downgrade() -> None:
    for name, table, _ in INDEXES:
        op.drop_index(name, table)
    for table, columns in (("incidents", incident_columns()), ("bundles", bundle_columns())):
        for column in columns:
            op.drop_column(table, column.name)
    op.drop_table("activity")
    op.drop_table("causes")
