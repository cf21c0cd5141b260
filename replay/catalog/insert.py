"""Many rows in one statement; rows whose key is there already are left as they are.

On PostgreSQL rows travel as one array a column: the statement's text is then the same whatever their number, so that
neither the driver nor the server reads ten thousand parameters anew for every batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session

from checkengine.replay.catalog.base import Base


def is_postgresql(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def statement(session: Session, table: type[Base]) -> Any:
    """The dialect's INSERT, which knows ON CONFLICT."""
    target: Any = sa.inspect(table).local_table
    return postgresql.insert(target) if is_postgresql(session) else sqlite.insert(target)


def insert_new(
    session: Session, table: type[Base], rows: Sequence[Mapping[str, Any]], returning: Sequence[str] = ()
) -> list[tuple[Any, ...]]:
    """Insert rows by column name; all have the same columns. Of those that were new, the columns of `returning`
    (by default the primary key), in no order."""
    if not rows:
        return []
    columns = sa.inspect(table).local_table.columns
    keys: list[Any] = [columns[name] for name in returning] or list(sa.inspect(table).primary_key)
    made = statement(session, table)
    given: Any = rows[0] if len(rows) == 1 else list(rows)
    if len(rows) > 1 and is_postgresql(session):
        names = list(rows[0])
        made = made.from_select(names, sa.select(*(unnested(name, columns[name].type) for name in names)))
        given = {name: [sent(row[name], columns[name].type) for row in rows] for name in names}
    made = made.on_conflict_do_nothing().returning(*keys)
    return [tuple(row) for row in session.connection().execute(made, given)]


def unnested(name: str, kind: sa.types.TypeEngine[Any]) -> sa.ColumnElement[Any]:
    """The items of the array that is bound as `name`, one a row."""
    item = sa.Text() if isinstance(kind, sa.JSON) else kind
    items = sa.func.unnest(sa.bindparam(name, type_=postgresql.ARRAY(item, dimensions=1)))
    return sa.cast(items, kind) if isinstance(kind, sa.JSON) else items


def sent(value: object, kind: sa.types.TypeEngine[Any]) -> object:
    return json.dumps(value) if isinstance(kind, sa.JSON) else value


def among(
    session: Session, columns: Sequence[InstrumentedAttribute[Any]], wanted: Sequence[tuple[Any, ...]]
) -> sa.ColumnElement[bool]:
    """Whether the columns together are one of `wanted`."""
    values = sa.tuple_(*columns)
    if not is_postgresql(session):
        return values.in_(wanted)
    arrays = [
        sa.func.unnest(sa.literal([row[at] for row in wanted], postgresql.ARRAY(column.type, dimensions=1)))
        for at, column in enumerate(columns)
    ]
    return values.in_(sa.select(*arrays))
