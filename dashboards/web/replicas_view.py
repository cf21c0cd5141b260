"""The register of replicas, as pages show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from checkengine.dashboards.web import words
from checkengine.replay.catalog import register
from checkengine.replay.catalog.fleet import ReplicaRow

SILENT_SECONDS = 90.0
"""A replica that told nothing for so long is not taken for serving."""
FORGOTTEN_SECONDS = 7 * 86400.0
"""Replicas that told nothing for so long are no longer listed."""
ALARMING = ("ecc_uncorrected", "xid", "nvlink_errors")
"""Parts of counters' names that must be 0."""


@dataclass(frozen=True, slots=True)
class Replica:
    row: ReplicaRow
    state: str
    """serving, drained, gone or silent."""
    tone: str
    trouble: tuple[str, ...]
    """What is wrong with it, in words."""


def replicas(session: Session, now: float) -> list[Replica]:
    found = [replica_of(row, now) for row in register.replicas(session, now - FORGOTTEN_SECONDS)]
    return sorted(found, key=lambda each: ("bad", "warn", "good", "").index(each.tone))


def replica_of(row: ReplicaRow, now: float) -> Replica:
    silent = row.state == "serving" and now - row.last_seen > SILENT_SECONDS
    state = "silent" if silent else row.state
    trouble = list(troubles(row))
    if silent:
        trouble.insert(0, f"told nothing for {words.duration(now - row.last_seen)}")
    tone = {"gone": "", "silent": "bad", "drained": "warn"}.get(state, "warn" if trouble else "good")
    return Replica(row, state, tone, tuple(trouble))


def troubles(row: ReplicaRow) -> Iterable[str]:
    for name, state in guards_of(row).items():
        if state.get("braked"):
            yield f"brake pulled on {name}"
        elif state.get("active") is False:
            reason = str(state.get("reason") or "")
            yield f"{name} is off: {reason}" if reason else f"{name} is off"
    for name, value in dict(row.counters).items():
        if isinstance(value, int | float) and value > 0 and any(part in name for part in ALARMING):
            yield f"{name} {value:g}"


def guards_of(row: ReplicaRow) -> dict[str, Mapping[str, Any]]:
    """Told by a stranger."""
    return {str(name): state for name, state in dict(row.guards).items() if isinstance(state, Mapping)}
