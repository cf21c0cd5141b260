"""Causes: one row for all incidents of the same guard, kind, model, place and kernel."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass, replace

import sqlalchemy as sa
from sqlalchemy.orm import Session

from checkengine.replay.catalog.fleet import ReplicaRow
from checkengine.replay.catalog.insert import insert_new
from checkengine.replay.catalog.models import CauseRow


@dataclass(frozen=True, slots=True)
class Cause:
    """In the order of the key; all names empty where nobody told."""

    guard: str = ""
    kind: str = ""
    severity: int = 0
    model: str = ""
    replica: str = ""
    device: str = ""
    driver: str = ""
    kernel: str = ""
    prefix: str = ""

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(astuple(self)).encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """The same on every replica and after every restart: what is muted."""
        parts = (self.guard, self.kind, self.model, self.kernel)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def placed(self, replica: ReplicaRow | None) -> Cause:
        """With what the register knows of its replica."""
        if replica is None:
            return self
        return replace(self, model=replica.model, device=replica.device, driver=replica.driver, kernel=replica.kernel)


def cause_of(row: CauseRow) -> Cause:
    return Cause(
        row.guard, row.kind, row.severity, row.model, row.replica, row.device, row.driver, row.kernel, row.prefix
    )


def cause_ids(session: Session, causes: set[Cause]) -> dict[Cause, int]:
    """Their rows' ids; rows that are not there are made. In the order of their keys, so that writers never deadlock."""
    by_key = {cause.key: cause for cause in causes}
    ids = known_ids(session, by_key)
    missing = sorted(by_key.keys() - ids.keys())
    if missing:
        insert_new(session, CauseRow, [values_of(by_key[key]) for key in missing])
        ids |= known_ids(session, {key: by_key[key] for key in missing})
    return {by_key[key]: identifier for key, identifier in ids.items()}


def known_ids(session: Session, by_key: dict[str, Cause]) -> dict[str, int]:
    found = session.execute(sa.select(CauseRow.key, CauseRow.id).where(CauseRow.key.in_(by_key)))
    return {str(row.key): int(row.id) for row in found}


def values_of(cause: Cause) -> dict[str, object]:
    names = ("guard", "kind", "severity", "model", "replica", "device", "driver", "kernel", "prefix")
    values = dict(zip(names, astuple(cause), strict=True))
    return values | {"key": cause.key, "fingerprint": cause.fingerprint}
