"""Run-time switches over one shim (design rule 4): any guard, or the whole sidecar, off or on without a restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checkengine.assemble import EngineShim, replica_name
from checkengine.engine_shim.arming import Arming
from checkengine.engine_shim.condition import ConditionError
from checkengine.guards import Pipeline, Policy
from checkengine.replay.bundle import AccessLog

if TYPE_CHECKING:
    from checkengine.engine_shim.engine.server_control import GuardSwitch

logger = logging.getLogger("checkengine.switches")

SIDECAR = "sidecar"
"""The name under which the shim as a whole is switched, recorder and captures included."""


class ShimSwitches:
    """Implements the server's Controller. A change holds from the next step on and until the process ends."""

    def __init__(self, shim: EngineShim) -> None:
        self._shim = shim
        self._captures = shim.assembly.captures
        self._pipeline, self._policy = shim.parts.pipeline, shim.parts.policy

    def guards(self) -> Sequence[Mapping[str, Any]]:
        listed = guard_rows(self._pipeline, self._policy, self._shim.enabled)
        failed = ", ".join(self._shim.failed_parts())
        reason = "switched off" if not self._shim.enabled else f"failed: {failed}" if failed else ""
        return [*listed, {"name": SIDECAR, "active": not reason, "reason": reason}]

    def switch_guard(self, name: str, action: GuardSwitch) -> None:
        """Raises KeyError for a guard that is not there. `rearm` also lets go of the brake."""
        if name == SIDECAR:
            self._switch_sidecar(action)
        elif action == "disable":
            self._pipeline.disable(name)
        elif action == "enable":
            self._pipeline.enable(name)
        else:
            self._pipeline.rearm(name)
            self._policy.release(name)

    def release_brake(self) -> None:
        release_all(self._pipeline, self._policy)

    def audits(self) -> Mapping[str, Any] | None:
        """Since the start; None where audits are off."""
        audits = getattr(getattr(self._shim, "assembly", None), "audits", None)
        return None if audits is None else audits.status()

    def armed(self) -> Mapping[str, Any]:
        captures = self._captures
        active = captures.armings.active(time.time()) if captures is not None else ()
        return {"replica": replica_name(), "armed": [arming.to_json() for arming in active]}

    def arm(self, when: str, *, level: str, seconds: float, most: int) -> Mapping[str, Any]:
        """On record before it holds. Raises ConditionError, or BundleError where the access log cannot be written."""
        captures = self._captures
        if captures is None:
            raise ConditionError("nothing can be captured here: [capture] or [recorder] is off, or the engine cannot")
        arming = captures.armings.made(when, level=level, seconds=seconds, most=most, now=time.time())
        log_arming(arming)
        captures.armings.add(arming, time.time())
        return {"replica": replica_name(), "armed": arming.to_json()}

    def disarm(self, identifier: str) -> None:
        arming = self._captures.armings.disarm(identifier) if self._captures is not None else None
        if arming is None:
            raise KeyError(identifier)
        log_disarming(arming)

    def _switch_sidecar(self, action: GuardSwitch) -> None:
        if action == "disable":
            self._shim.enabled = False
            logger.warning("the sidecar is off: no guard looks, nothing is recorded or captured")
        else:
            self._shim.arm()
            logger.warning("the sidecar is on")


def guard_rows(pipeline: Pipeline, policy: Policy, enabled: bool) -> list[Mapping[str, Any]]:
    """One a guard; `enabled`: the sidecar as a whole is on."""
    would_have_stopped = policy.would_have_stopped()
    return [
        {
            "name": name,
            "active": state.active and enabled,
            "reason": state.reason or ("" if enabled else "the sidecar is off"),
            "action": policy.action_of(name),
            "braked": policy.braked(name),
            "would_have_stopped": would_have_stopped.get(name, 0),
            "steps": state.steps,
            "cpu_seconds": state.cpu_seconds,
            "overruns": state.overruns,
        }
        for name, state in pipeline.states().items()
    ]


def release_all(pipeline: Pipeline, policy: Policy) -> None:
    """Brakes."""
    for name in pipeline.states():
        if policy.braked(name):
            policy.release(name)


def log_arming(arming: Arming) -> None:
    """On record before it holds. Raises BundleError where the access log cannot be written."""
    ends = time.strftime("%FT%TZ", time.gmtime(arming.until))
    words = f"{arming.identifier}: {arming.level} where {arming.condition.text}, until {ends}, at most {arming.most}"
    AccessLog.of_this_deployment().add("arm", "", words)
    logger.warning("armed %s", words)


def log_disarming(arming: Arming) -> None:
    logger.warning("disarmed %s, with %d captures", arming.identifier, len(arming.captured))
    AccessLog.of_this_deployment().add("disarm", "", f"{arming.identifier}: {len(arming.captured)} captures")
