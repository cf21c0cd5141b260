"""A shim's place in the register of replicas: it reports, and it obeys orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checkengine import __version__
from checkengine.config import Settings
from checkengine.engine_shim.devices import counters_of, device_facts
from checkengine.engine_shim.order_watch import OrderWatch
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.guards import Policy
from checkengine.obeying import EngineSwitches, Obedience
from checkengine.replay.orders import orders_path
from checkengine.reporting import ReplicaReporter, replica_facts

TOLD = ("active", "reason", "action", "braked", "would_have_stopped")


class Registered:
    """`hold_back` and `held_back` come from a server, where there is one."""

    def __init__(
        self,
        switches: EngineSwitches,
        policy: Policy,
        settings: Settings,
        spool: SpoolWriter,
        replica: str,
        environment: Mapping[str, Any],
    ) -> None:
        self._switches = switches
        self._hold_back: Callable[[bool], None] | None = None
        self._held_back: Callable[[], bool] = lambda: False
        guards = settings.guards
        self._obey = Obedience(self._switches, policy, lambda name: guards.of(name).action, self._hold)
        device = device_facts()
        facts = replica_facts(environment, device, __version__)
        path = orders_path(settings.spool.directory, spool.boot)
        self._watch = OrderWatch(path, replica, self._obey, self._report)
        self._reporter = ReplicaReporter(
            spool,
            facts,
            self._guards,
            counters=counters_of(device),
            applied=lambda: self._watch.applied,
            drained=lambda: self._held_back(),
        )
        self._reporter.start()
        self._watch.start()

    def drained_by(self, hold_back: Callable[[bool], None], held_back: Callable[[], bool]) -> None:
        """A server that can refuse new requests."""
        self._hold_back, self._held_back = hold_back, held_back

    def close(self) -> None:
        self._watch.close()
        self._reporter.close()

    def _report(self) -> None:
        self._reporter.report()

    def _hold(self, wanted: bool) -> None:
        from checkengine.guards.errors import UserError

        if self._hold_back is None:
            raise UserError("this engine has no server that could refuse requests: drain it where its router is")
        self._hold_back(wanted)

    def _guards(self) -> dict[str, dict[str, Any]]:
        return {
            str(guard["name"]): {name: guard[name] for name in TOLD if name in guard}
            for guard in self._switches.guards()
        }
