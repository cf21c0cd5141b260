"""Run by alembic: migrates over the connection that the catalog hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from checkengine.replay.catalog import fleet, models, people

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=models.Base.metadata,
    render_as_batch=True,
)
context.run_migrations()

TABLES = (fleet, models, people)
"""Imported so that the metadata knows all tables."""
