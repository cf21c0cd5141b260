"""Incidents, findings, actions, bundles, replays, notices, spools."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(128), nullable=False, index=True),
        sa.Column("replica", sa.String(256), nullable=False),
        sa.Column("first_seen", sa.Float(53), nullable=False, index=True),
        sa.Column("last_seen", sa.Float(53), nullable=False),
        sa.Column("findings", sa.Integer(), nullable=False),
        sa.Column("evidence", sa.Integer(), nullable=False),
        sa.Column("sequences", sa.Integer(), nullable=False),
        sa.Column("acknowledged", sa.Float(53), nullable=True),
    )
    op.create_table(
        "findings",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        *spooled(),
        incident(),
        sa.Column("time", sa.Float(53), nullable=False, index=True),
        sa.Column("replica", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(128), nullable=False, index=True),
        sa.Column("sequence", sa.String(512), nullable=False, index=True),
        sa.Column("severity", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("guard", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("is_primary", sa.Boolean(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.UniqueConstraint("boot", "number", name="uq_findings_boot_number"),
    )
    op.create_table(
        "actions",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        *spooled(),
        incident(),
        sa.Column("time", sa.Float(53), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("finding", sa.String(128), nullable=False),
        sa.Column("sequence", sa.String(512), nullable=False),
        sa.Column("keep_tokens", sa.Integer(), nullable=False),
        sa.UniqueConstraint("boot", "number", name="uq_actions_boot_number"),
    )
    op.create_table(
        "bundles",
        sa.Column("id", sa.String(256), primary_key=True),
        incident(),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("time", sa.Float(53), nullable=False, index=True),
    )
    op.create_table(
        "replays",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("bundle", sa.String(256), nullable=False),
        sa.Column("time", sa.Float(53), nullable=False),
        sa.Column("verdict", sa.String(64), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
    )
    op.create_index("ix_replays_bundle_time", "replays", ["bundle", "time"])
    op.create_table(
        "notices",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=True),
        *spooled(),
        sa.Column("time", sa.Float(53), nullable=False, index=True),
        sa.Column("replica", sa.String(256), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("sequence", sa.String(512), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.UniqueConstraint("boot", "number", name="uq_notices_boot_number"),
    )
    op.create_table(
        "spools",
        sa.Column("file", sa.String(64), primary_key=True),
        sa.Column("read_bytes", sa.BigInteger(), nullable=False),
        sa.Column("damaged", sa.Integer(), nullable=False),
    )


def spooled() -> list[sa.Column[int] | sa.Column[str]]:
    return [sa.Column("boot", sa.String(16), nullable=False), sa.Column("number", sa.BigInteger(), nullable=False)]


def incident() -> sa.Column[str]:
    return sa.Column("incident_id", sa.String(64), sa.ForeignKey("incidents.id"), nullable=False, index=True)


def downgrade() -> None:
    for table in ("spools", "notices", "replays", "bundles", "actions", "findings", "incidents"):
        op.drop_table(table)
