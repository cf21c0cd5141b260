"""Replicas, requests, controls and jobs; users, sessions, comments, mutes, the audit log, saved views."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for make in (make_replicas, make_requests, make_controls, make_jobs, make_people, make_marks, make_records):
        make()


def make_replicas() -> None:
    op.create_table(
        "replicas",
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("boot", sa.String(16), nullable=False),
        sa.Column("host", sa.String(256), nullable=False),
        sa.Column("engine", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False, index=True),
        sa.Column("device", sa.String(256), nullable=False, index=True),
        sa.Column("device_name", sa.String(256), nullable=False),
        sa.Column("driver", sa.String(128), nullable=False),
        sa.Column("image", sa.String(512), nullable=False),
        sa.Column("kernel", sa.String(256), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("kernels", sa.JSON(), nullable=False),
        sa.Column("counters", sa.JSON(), nullable=False),
        sa.Column("guards", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("applied", sa.BigInteger(), nullable=False),
        sa.Column("started", sa.Float(53), nullable=False),
        sa.Column("last_seen", sa.Float(53), nullable=False, index=True),
    )


def make_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("boot", sa.String(16), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.String(512), nullable=False, index=True),
        sa.Column("request", sa.String(512), nullable=False, index=True),
        sa.Column("response", sa.String(512), nullable=False, index=True),
        sa.Column("trace_id", sa.String(64), nullable=False, index=True),
        sa.Column("replica", sa.String(256), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("configuration", sa.String(64), nullable=False),
        sa.Column("time", sa.Float(53), nullable=False, index=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("ttft_seconds", sa.Float(53), nullable=True),
        sa.Column("total_seconds", sa.Float(53), nullable=True),
        sa.Column("finish_reason", sa.String(64), nullable=False),
        sa.Column("error", sa.String(64), nullable=False),
        sa.Column("scores", sa.JSON(), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.UniqueConstraint("boot", "number", name="uq_requests_boot_number"),
    )


def make_controls() -> None:
    op.create_table(
        "controls",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("replica", sa.String(256), nullable=False),
        sa.Column("subject", sa.String(16), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("desired", sa.JSON(), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=True),
        sa.Column("actor", sa.String(128), nullable=False),
        sa.Column("time", sa.Float(53), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_controls_target", "controls", ["replica", "subject", "name"])


def make_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("bundle", sa.String(256), nullable=False, index=True),
        sa.Column("incident_id", sa.String(64), nullable=False, index=True),
        sa.Column("target", sa.String(256), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("progress", sa.Float(53), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("worker", sa.String(256), nullable=False),
        sa.Column("actor", sa.String(128), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("started", sa.Float(53), nullable=True),
        sa.Column("heartbeat", sa.Float(53), nullable=True),
        sa.Column("ended", sa.Float(53), nullable=True),
        sa.Column("verdict", sa.String(64), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=False),
    )
    op.create_index("ix_jobs_state_time", "jobs", ["state", "created"])


def make_people() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(128), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("token_hash", sa.String(128), nullable=False, index=True),
        sa.Column("subject", sa.String(256), nullable=False, index=True),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("disabled", sa.Float(53), nullable=True),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=True, index=True),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("csrf", sa.String(64), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("last_seen", sa.Float(53), nullable=False),
        sa.Column("expires", sa.Float(53), nullable=False, index=True),
        sa.Column("data", sa.JSON(), nullable=False),
    )


def make_marks() -> None:
    op.create_table(
        "comments",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("incident_id", sa.String(64), sa.ForeignKey("incidents.id"), nullable=False),
        sa.Column("author", sa.String(128), nullable=False),
        sa.Column("time", sa.Float(53), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
    )
    op.create_index("ix_comments_incident_time", "comments", ["incident_id", "time"])
    op.create_table(
        "mutes",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("fingerprint", sa.String(16), nullable=False, index=True),
        sa.Column("expires", sa.Float(53), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(128), nullable=False),
        sa.Column("time", sa.Float(53), nullable=False),
        sa.Column("lifted", sa.Float(53), nullable=True),
    )


def make_records() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("time", sa.Float(53), nullable=False, index=True),
        sa.Column("actor", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("remote", sa.String(64), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject_kind", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
    )
    op.create_index("ix_audit_log_subject", "audit_log", ["subject_kind", "subject", "time"])
    op.create_table(
        "saved_views",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("query", sa.Text(), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("time", sa.Float(53), nullable=False),
    )
    op.create_index("ix_saved_views_owner_name", "saved_views", ["owner", "name"], unique=True)


def downgrade() -> None:
    for table in (
        "saved_views",
        "audit_log",
        "mutes",
        "comments",
        "sessions",
        "users",
        "jobs",
        "controls",
        "requests",
        "replicas",
    ):
        op.drop_table(table)
