"""Orders of operators, from the catalog into a file beside each engine's spool."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from checkengine.replay import orders
from checkengine.replay.catalog import Catalog, controls
from checkengine.replay.catalog.fleet import ReplicaRow
from checkengine.replay.spool_format import SUFFIX, parse_name


class OrderFiles:
    """Called after each round of the collector: replicas whose spools lie in the directory get what holds for them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: dict[str, bytes] = {}

    def __call__(self, catalog: Catalog, now: float) -> None:
        boots = {found[0] for path in self._directory.glob(f"*{SUFFIX}") if (found := parse_name(path.name))}
        with catalog.reading() as session:
            query = sa.select(ReplicaRow.boot, ReplicaRow.name).where(ReplicaRow.boot.in_(boots))
            wanted = {boot: (name, controls.wanted(session, name, now)) for boot, name in session.execute(query)}
        for boot, (name, living) in wanted.items():
            told = [orders.Order(each.revision, each.subject, each.name, each.desired) for each in living]
            self._write(boot, orders.encode(name, told), bool(told))
        self._forget(boots)

    def _write(self, boot: str, data: bytes, any_order: bool) -> None:
        if self._written.get(boot) == data or (boot not in self._written and not any_order):
            return
        orders.write(orders.orders_path(self._directory, boot), data)
        self._written[boot] = data

    def _forget(self, boots: set[str]) -> None:
        """Of processes that are gone and whose spools were read to their end."""
        for path in self._directory.glob(f"*{orders.SUFFIX}"):
            if path.stem not in boots:
                path.unlink(missing_ok=True)
                self._written.pop(path.stem, None)
