"""A vLLM engine core's place in the register of replicas: it reports, and it obeys orders."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from checkengine.config import Settings
from checkengine.engine_shim.condition import ConditionError
from checkengine.engine_shim.spool import SpoolWriter
from checkengine.engine_shim.vllm.armed_orders import ArmedOrders
from checkengine.engine_shim.vllm.environment import facts_of
from checkengine.engine_shim.vllm.scheduler import SchedulerGuards
from checkengine.registering import Registered
from checkengine.replica import replica_name
from checkengine.switches import SIDECAR, guard_rows, log_arming, log_disarming, release_all

logger = logging.getLogger("vllm.checkengine")


class VllmSwitches:
    """Any thread calls; what changes the scheduler's books waits for its next step."""

    def __init__(self, guards: SchedulerGuards, armed: ArmedOrders | None) -> None:
        self._guards, self._armed = guards, armed

    def guards(self) -> Sequence[Mapping[str, Any]]:
        on = self._guards.enabled
        failed = ", ".join(self._guards.failed_parts())
        reason = "switched off" if not on else f"failed: {failed}" if failed else ""
        rows = guard_rows(self._guards.pipeline, self._guards.policy, on)
        return [*rows, {"name": SIDECAR, "active": not reason, "reason": reason}]

    def switch_guard(self, name: str, action: str) -> None:
        """Raises KeyError for a guard that is not there."""
        if name == SIDECAR:
            self._guards.wanted = action != "disable"
        elif action == "disable":
            self._guards.pipeline.disable(name)
        elif action == "enable":
            self._guards.pipeline.enable(name)
        else:
            self._guards.pipeline.rearm(name)
            self._guards.policy.release(name)

    def release_brake(self) -> None:
        release_all(self._guards.pipeline, self._guards.policy)

    def arm(self, when: str, *, level: str, seconds: float, most: int) -> Mapping[str, Any]:
        """Raises ConditionError."""
        if self._armed is None:
            raise ConditionError("nothing can be captured here: [capture] or [recorder] is off")
        arming = self._armed.made(when, level=level, seconds=seconds, most=most)
        log_arming(arming)
        self._armed.armings.add(arming, arming.until - seconds)
        return {"replica": replica_name(), "armed": arming.to_json()}

    def disarm(self, identifier: str) -> None:
        arming = self._armed.armings.disarm(identifier) if self._armed is not None else None
        if arming is None:
            raise KeyError(identifier)
        log_disarming(arming)


def register(
    guards: SchedulerGuards, armed: ArmedOrders | None, settings: Settings, spool: SpoolWriter, config: Any
) -> Registered:
    """Its `close` tells that the replica is gone, so it comes before the spool's."""
    return Registered(VllmSwitches(guards, armed), guards.policy, settings, spool, replica_name(), facts_of(config))
