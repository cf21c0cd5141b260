"""Many rows in one statement; rows whose key is there already are left as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from checkengine.replay.catalog.base import Base


def statement(session: Session, table: type[Base]) -> Any:
    """The dialect's INSERT, which knows ON CONFLICT."""
    target: Any = sa.inspect(table).local_table
    postgres = session.get_bind().dialect.name == "postgresql"
    return postgresql.insert(target) if postgres else sqlite.insert(target)


def insert_new(
    session: Session, table: type[Base], rows: Sequence[Mapping[str, Any]], returning: Sequence[str] = ()
) -> list[tuple[Any, ...]]:
    """Insert rows by column name; all have the same columns. Of those that were new, the columns of `returning`
    (by default the primary key), in no order."""
    if not rows:
        return []
    columns = sa.inspect(table).local_table.columns
    keys: list[Any] = [columns[name] for name in returning] or list(sa.inspect(table).primary_key)
    made = statement(session, table).on_conflict_do_nothing().returning(*keys)
    connection = session.connection()
    if len(rows) == 1:
        return [tuple(row) for row in connection.execute(made, rows[0])]
    return [tuple(row) for row in connection.execute(made, list(rows))]
