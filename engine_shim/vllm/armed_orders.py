"""In the engine core: healthy-looking steps that meet a condition, for which the workers' black boxes are armed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from checkengine.engine_shim.arming import Arming, Armings, matches
from checkengine.engine_shim.condition import ConditionError
from checkengine.engine_shim.vllm.black_box import CaptureOrder
from checkengine.engine_shim.vllm.seen_steps import NOT_TOLD, Handles, seen_step
from checkengine.guards.action import Action
from checkengine.guards.finding import Finding
from checkengine.guards.step import SequenceStart, StepView


class ArmedOrders:
    """A `SchedulerListener`. Whether a capture is made is the worker's decision: an order counts as a capture here."""

    def __init__(self, incident_of: Callable[[str], str | None]) -> None:
        self.armings = Armings()
        self._incident_of = incident_of
        self._handles = Handles()
        self._waiting: list[CaptureOrder] = []

    def made(self, when: str, *, level: str, seconds: float, most: int) -> Arming:
        """ConditionError where any of it cannot be used here."""
        arming = self.armings.made(when, level=level, seconds=seconds, most=most, now=time.time())
        if missing := sorted(arming.condition.fields & NOT_TOLD):
            raise ConditionError(f"inside vLLM a condition cannot ask for {' or '.join(missing)}")
        return arming

    def step_done(self, view: StepView, findings: list[Finding], actions: list[Action]) -> None:
        if not self.armings:
            return
        record = seen_step(view, self._handles)
        starts = {
            handle: SequenceStart(handle, name)
            for handle, name in zip(record.handles.tolist(), view.sequences, strict=True)
        }
        for match in matches(self.armings.due(time.time()), record, findings, lambda: starts):
            match.arming.captured.add(match.handle)
            self._waiting.append(
                CaptureOrder(
                    self._incident_of(match.sequence),
                    match.findings,
                    counted_as=match.counted_as(view.step),
                    armed=match.arming.identifier,
                    level=match.arming.level,
                )
            )

    def orders(self) -> tuple[Any, ...]:
        orders, self._waiting = tuple(self._waiting), []
        return orders
