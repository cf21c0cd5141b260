"""What every table of the catalog shares."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Float
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    type_annotation_map = {float: Float(53), dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012
