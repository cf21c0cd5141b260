"""Orders of operators, turned into switches of one engine's shim."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from checkengine.guards.errors import UserError
from checkengine.guards.policy import Policy
from checkengine.guards.settings import GuardAction
from checkengine.replay.orders import Order
from checkengine.switches import SIDECAR

logger = logging.getLogger("checkengine.orders")

ACTING: GuardAction = "stop"
"""What a guard does that is let to act and was not configured to."""


class EngineSwitches(Protocol):
    """Of one engine; called from the thread that reads orders."""

    def guards(self) -> Sequence[Mapping[str, Any]]: ...

    def switch_guard(self, name: str, action: Any) -> None: ...

    def release_brake(self) -> None: ...

    def arm(self, when: str, *, level: str, seconds: float, most: int) -> Mapping[str, Any]: ...

    def disarm(self, identifier: str) -> None: ...


class Obedience:
    """`hold_back` makes the server refuse new requests (True) or take them again."""

    def __init__(
        self,
        switches: EngineSwitches,
        policy: Policy,
        configured: Callable[[str], GuardAction],
        hold_back: Callable[[bool], None] | None = None,
    ) -> None:
        self._switches, self._policy, self._configured, self._hold_back = switches, policy, configured, hold_back
        self._armed: dict[str, str] = {}

    def __call__(self, order: Order) -> None:
        """UserError or KeyError where it cannot be done here."""
        match order.subject:
            case "guard":
                self._guard(order.name, order.state)
            case "sidecar":
                self._switches.switch_guard(SIDECAR, "disable" if order.state == "off" else "enable")
            case "brake":
                self._brake(order.state)
            case "capture":
                self._capture(order)
            case "replica":
                self._replica(order.state)
            case _:
                raise UserError(f"nothing here obeys {order.subject!r}")

    def _guard(self, name: str, state: str) -> None:
        known = {str(guard["name"]) for guard in self._switches.guards()} - {SIDECAR}
        if name not in known:
            raise UserError(f"there is no guard {name[:80]!r}")
        if state in ("act", "observe"):
            own = self._configured(name)
            acting = own if own in ("stop", "retry") else ACTING
            self._policy.set_action(name, acting if state == "act" else "observe")
        elif state == "rearm":
            self._switches.switch_guard(name, "rearm")
        else:
            self._switches.switch_guard(name, "disable" if state == "off" else "enable")

    def _brake(self, state: str) -> None:
        if state == "release":
            self._switches.release_brake()
            return
        for guard in self._switches.guards():
            if guard["name"] != SIDECAR:
                self._policy.pull(str(guard["name"]))

    def _capture(self, order: Order) -> None:
        desired: Mapping[str, Any] = order.desired
        if order.state == "disarm":
            self._switches.disarm(self._armed.pop(order.name, order.name))
            return
        told = self._switches.arm(
            str(desired.get("when", "")),
            level=str(desired.get("level", "L3")),
            seconds=float(desired.get("seconds", 600.0)),
            most=int(desired.get("most", 3)),
        )
        self._armed[order.name] = str(told["armed"]["id"])

    def _replica(self, state: str) -> None:
        if self._hold_back is None:
            raise UserError("this engine is not drained from here: its own router does that")
        self._hold_back(state == "drain")
