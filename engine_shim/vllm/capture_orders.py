"""In the engine core: which findings the workers' black boxes are told to capture, with the next message."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from checkengine.engine_shim.vllm.black_box import CaptureOrder
from checkengine.guards.action import Action
from checkengine.guards.finding import Finding
from checkengine.guards.step import StepView

REMEMBERED = 4096
"""Incidents that were captured."""


class CaptureOrders:
    """A `SchedulerListener`: one order an incident, with all findings of the sequence in that step.

    The workers copy before they run the message's step, so blocks that it hands on are still as they were."""

    def __init__(self, incident_of: Callable[[str], str | None]) -> None:
        self._incident_of = incident_of
        self._ordered: OrderedDict[str, None] = OrderedDict()
        self._waiting: list[CaptureOrder] = []

    def step_done(self, view: StepView, findings: list[Finding], actions: list[Action]) -> None:
        for finding in findings:
            incident = self._incident_of(finding.sequence)
            if incident is not None and incident not in self._ordered:
                self._remember(incident)
                own = tuple([each for each in findings if each.sequence == finding.sequence])
                self._waiting.append(CaptureOrder(incident, own))

    def orders(self) -> tuple[Any, ...]:
        orders, self._waiting = tuple(self._waiting), []
        return orders

    def _remember(self, incident: str) -> None:
        self._ordered[incident] = None
        while len(self._ordered) > REMEMBERED:
            self._ordered.popitem(last=False)
