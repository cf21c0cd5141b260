"""Run by alembic: migrates over the connection that the catalog hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from checkengine.replay.catalog.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
context.run_migrations()
