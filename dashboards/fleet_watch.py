"""Watches all requests of the catalog for drift, and replicas, devices, drivers and kernels beside their siblings.

One process of the fleet does it at a time: whoever holds the catalog's lease `fleet-watch`. It begins with the newest
requests as history, of which nothing is told, so that a restart costs no alarm and gives none twice.

Limits: on PostgreSQL a request that is committed after a later one was read is not looked at; the sibling test begins
anew with the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from checkengine.dashboards.web.drift_view import MEASURES
from checkengine.guards.drift import DriftGuard
from checkengine.guards.events import Event, FindingRaised
from checkengine.guards.finding import Finding
from checkengine.guards.incident import IncidentBook
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.siblings import SiblingGuard
from checkengine.guards.text import TextFinding
from checkengine.replay.catalog.catalog import Catalog
from checkengine.replay.catalog.fleet import ReplicaRow, RequestRow
from checkengine.replay.catalog.leases import Lease
from checkengine.replay.catalog.models import FindingRow, IncidentRow

logger = logging.getLogger("checkengine.fleet")
BATCH = 5000
HISTORY = 10_000
"""Requests before now that a watcher learns from when it begins."""
FLEET = "fleet"
"""Replica of an incident that is no single replica's."""
LEASE = "fleet-watch"


class FleetWatch:
    """Called after each round of the collector. `publish` gets findings of kind `drift.<series>` and
    `drift.<dimension>`; the book groups them into incidents."""

    def __init__(self, settings: GuardsSettings, publish: Callable[[Event], None], book: IncidentBook) -> None:
        self._settings, self._publish, self._book = settings, publish, book
        self._lease: Lease | None = None
        self._drift = DriftGuard(settings.drift)
        self._siblings = SiblingGuard(settings.siblings)
        self._failed = False
        self._request, self._finding = -1, -1
        """Newest rows that were read; -1 before the history was."""
        self._now = 0.0
        self._labels: dict[str, Mapping[str, str]] = {}
        self._counted: dict[str, None] = {}
        """Incidents that were held against a member: one of a cause counts once."""

    def warm_up(self) -> None:
        """Compile what compiles: in a process that also serves, before it is ready."""
        guard = DriftGuard(self._settings.drift)
        guard.update("number", 1.0, 1.0)
        guard.update("number of an input", 1.0, 1.0, 1.0)
        guard.update("name", 1.0, "name")

    def evidence(self) -> Mapping[str, tuple[float, float]]:
        """By series, as metrics ask for it; nothing where another process watches."""
        return self._drift.evidence()

    def __call__(self, catalog: Catalog, now: float) -> None:
        off = self._settings.drift.action == "off" and self._settings.siblings.action == "off"
        if off or self._failed:
            return
        try:
            self._watch(catalog, now)
        except SQLAlchemyError:
            raise
        except Exception:
            # Fail open: collecting goes on without it.
            self._failed = True
            logger.exception("the watch over the fleet raised and is switched off")

    def _watch(self, catalog: Catalog, now: float) -> None:
        if self._lease is None:
            self._lease = Lease.of(catalog, LEASE)
        if not self._lease.held():
            return
        with catalog.reading() as session:
            told = self._read(session)
        for finding in told:
            self._tell(finding, now)

    def close(self) -> None:
        if self._lease is not None:
            self._lease.release()

    def _read(self, session: Session) -> list[TextFinding]:
        if self._request < 0:
            self._begin(session)
        told: list[TextFinding] = []
        while rows := self._requests(session, self._request, BATCH):
            told += self._take(session, rows)
            self._request = rows[-1].id
        return told

    def _begin(self, session: Session) -> None:
        """The history: learnt from, not told."""
        newest = session.scalar(sa.select(sa.func.max(RequestRow.id))) or 0
        before = sa.select(RequestRow.id).where(RequestRow.id <= newest).order_by(RequestRow.id.desc()).limit(HISTORY)
        first = session.scalar(sa.select(sa.func.min(before.subquery().c.id))) or 0
        self._finding = session.scalar(sa.select(sa.func.max(FindingRow.id))) or 0
        rows = self._requests(session, first - 1, HISTORY) if first else []
        for row in rows:
            self._measure(row)
        self._request = newest

    def _requests(self, session: Session, after: int, limit: int) -> Sequence[RequestRow]:
        query = sa.select(RequestRow).where(RequestRow.id > after).order_by(RequestRow.id).limit(limit)
        return session.scalars(query).all()

    def _take(self, session: Session, rows: Sequence[RequestRow]) -> list[TextFinding]:
        told: list[TextFinding] = []
        for row in rows:
            told += self._measure(row) if self._settings.drift.action != "off" else []
            if self._settings.siblings.action != "off":
                told += self._siblings.request(self._clock(row.time), self._place(session, row.replica))
        if self._settings.siblings.action != "off":
            for kind, replica, time in self._new_incidents(session):
                told += self._siblings.finding(self._clock(time), kind, self._place(session, replica))
        return told

    def _measure(self, row: RequestRow) -> list[TextFinding]:
        told: list[TextFinding] = []
        for measure in MEASURES:
            value = measure.read(row)
            given = measure.given(row) if measure.given is not None else None
            if value is not None:
                told += self._drift.update(measure.name, row.time, value, given)
        return told

    def _new_incidents(self, session: Session) -> Iterable[tuple[str, str, float]]:
        """Kind, replica and time of each new primary finding that is the first of its sequence's cause."""
        query = (
            sa.select(FindingRow.id, FindingRow.incident_id, FindingRow.kind, FindingRow.replica, FindingRow.time)
            .join(IncidentRow, IncidentRow.id == FindingRow.incident_id)
            .where(FindingRow.id > self._finding, FindingRow.primary.is_(True), ~FindingRow.kind.startswith("drift."))
            .order_by(FindingRow.id)
        )
        found = []
        for identifier, incident, kind, replica, time in session.execute(query):
            self._finding = identifier
            if incident not in self._counted:
                self._counted[incident] = None
                found.append((kind, replica, time))
        while len(self._counted) > BATCH:
            del self._counted[next(iter(self._counted))]
        return found

    def _place(self, session: Session, replica: str) -> Mapping[str, str]:
        """Labels of a replica, as the register has them."""
        if replica not in self._labels:
            row = session.get(ReplicaRow, replica)
            named: dict[str, Any] = {"replica": replica}
            if row is not None:
                named |= {"device": row.device_name, "driver": row.driver, "kernel": row.kernel}
            self._labels[replica] = {name: value for name, value in named.items() if value}
        return self._labels[replica]

    def _clock(self, time: float) -> float:
        """Rows of several replicas come a little out of order; the test's clock must not go back."""
        self._now = max(self._now, time)
        return self._now

    def _tell(self, found: TextFinding, now: float) -> None:
        numbers = {name: value for name, value in found.evidence.items() if isinstance(value, int | float)}
        finding = Finding(found.kind, found.id, found.severity, 0, 0, found.guard, found.version, numbers)
        replica = found.id if found.kind == "drift.replica" else FLEET
        incident = self._book.record(finding, now, replica=replica)
        self._publish(FindingRaised(finding, incident, now, True))
