"""What a spool record says, as the values of a row; it came from another process and is not trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from checkengine.replay.catalog.fleet import ReplicaRow, RequestRow
from checkengine.replay.catalog.models import ActionRow, Base, BundleRow, FindingRow, NoticeRow
from checkengine.replay.spool_format import SpoolRecord

Values = dict[str, Any]
NO_INCIDENT = "inc-none"
"""What belongs to no incident (a bundle written by hand) hangs on this one."""


def table_and_values(record: SpoolRecord) -> tuple[type[Base], Values]:
    """Values by column name. Raises KeyError, TypeError or ValueError where the data is not that of its kind."""
    if not math.isfinite(record.time):
        raise ValueError(f"time is {record.time}")
    match record.kind:
        case "finding":
            return FindingRow, cleaned(FindingRow, finding_values(record))
        case "action":
            return ActionRow, cleaned(ActionRow, action_values(record))
        case "bundle":
            return BundleRow, cleaned(BundleRow, bundle_values(record))
        case "replica":
            return ReplicaRow, cleaned(ReplicaRow, replica_values(record))
        case "request":
            return RequestRow, cleaned(RequestRow, request_values(record))
        case _:
            return NoticeRow, cleaned(NoticeRow, notice_values(record))


def cleaned(table: type[Base], values: Values) -> Values:
    """Text that every database takes, cut to its column; ValueError for a number that no column takes."""
    lengths, limits = bounds_of(table)
    for name, value in values.items():
        if isinstance(value, str):
            text = value if value.isascii() and "\0" not in value else plain(value)
            values[name] = text[: lengths.get(name)]
        elif (limit := limits.get(name)) is not None and not -limit <= value < limit:
            raise ValueError(f"{name} is {value}")
    return values


def plain(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


@lru_cache
def bounds_of(table: type[Base]) -> tuple[dict[str, int | None], dict[str, int]]:
    """Letters of each column of text, and the least number that is too large for each of whole numbers."""
    kinds = {column.name: column.type for column in sa.inspect(table).local_table.columns}
    lengths = {name: kind.length for name, kind in kinds.items() if isinstance(kind, sa.String)}
    whole = {name: isinstance(kind, sa.BigInteger) for name, kind in kinds.items() if isinstance(kind, sa.Integer)}
    return lengths, {name: 1 << (63 if is_big else 31) for name, is_big in whole.items()}


def spool_values(record: SpoolRecord) -> Values:
    return {"boot": record.boot, "number": record.number, "time": record.time}


def finding_values(record: SpoolRecord) -> Values:
    data = record.data
    return spool_values(record) | {
        "incident_id": str(data["incident"] or NO_INCIDENT),
        "replica": record.replica,
        "kind": str(data["kind"]),
        "sequence": record.request,
        "severity": int(data["severity"]),
        "step": int(data["step"]),
        "token": int(data["token"]),
        "guard": str(data["guard"]),
        "version": int(data["version"]),
        "is_primary": bool(data["primary"]),
        "evidence": dict(data["evidence"]),
    }


def action_values(record: SpoolRecord) -> Values:
    data = record.data
    return spool_values(record) | {
        "incident_id": str(data["incident"] or NO_INCIDENT),
        "kind": str(data["kind"]),
        "finding": str(data["finding"]),
        "sequence": record.request,
        "keep_tokens": int(data["keep_tokens"]),
        "incident_replica": record.replica,
    }


def bundle_values(record: SpoolRecord) -> Values:
    data = record.data
    return {
        "id": str(data["bundle"]),
        "incident_id": str(data["incident"] or NO_INCIDENT),
        "path": str(data["path"]),
        "time": record.time,
        "replica": record.replica,
        "size_bytes": int(data.get("size_bytes", 0)),
        "content": str(data.get("content", "")),
        "expires": optional_number(data, "expires"),
        "held": False,
    }


def replica_values(record: SpoolRecord) -> Values:
    data = record.data
    names = ("host", "engine", "model", "device", "device_name", "driver", "image", "kernel")
    tables = ("versions", "kernels", "counters", "guards")
    return {
        "name": record.replica,
        "boot": record.boot,
        "state": str(data.get("state", "serving")),
        "started": float(data["started"]),
        "last_seen": record.time,
        **{name: str(data.get(name, "")) for name in names},
        **{name: dict(data.get(name, {})) for name in tables},
        **({"applied": int(data["applied"])} if "applied" in data else {}),
    }


def request_values(record: SpoolRecord) -> Values:
    data = record.data
    names = ("response", "trace_id", "model", "configuration", "finish_reason", "error", "fingerprint")
    counts = ("prompt_tokens", "output_tokens", "cached_tokens")
    return spool_values(record) | {
        "sequence": record.request,
        "request": str(data["request"]),
        "replica": record.replica,
        **{name: str(data.get(name) or "") for name in names},
        **{name: int(data.get(name, 0)) for name in counts},
        "ttft_seconds": optional_number(data, "ttft_seconds"),
        "total_seconds": optional_number(data, "total_seconds"),
        "scores": dict(data.get("scores", {})),
    }


def notice_values(record: SpoolRecord) -> Values:
    return spool_values(record) | {
        "replica": record.replica,
        "kind": record.kind,
        "sequence": record.request,
        "data": dict(record.data),
    }


def optional_number(data: Mapping[str, Any], name: str) -> float | None:
    value = data.get(name)
    if value is None or not math.isfinite(float(value)):
        return None
    return float(value)
