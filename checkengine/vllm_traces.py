"""Findings as spans in the trace of their request: vLLM tells its own span of a request only when it ends."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from opentelemetry.trace import SpanKind, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from checkengine.dashboards.traces import finding_attributes
from checkengine.guards.events import ActionTaken, Event, FindingRaised

REMEMBERED = 10_000
"""Requests whose trace is known; findings come while they run."""


class FindingSpans:
    """`begun` is called by the scheduler, `handle` by the event bus's thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("checkengine")
        self._propagator = TraceContextTextMapPropagator()
        self._headers: OrderedDict[str, dict[str, str]] = OrderedDict()

    def begun(self, request: Any) -> None:
        """vLLM hands `traceparent` on to the engine core where it traces at all."""
        if headers := getattr(request, "trace_headers", None):
            self._headers[request.request_id] = dict(headers)
            while len(self._headers) > REMEMBERED:
                self._headers.popitem(last=False)

    def handle(self, event: Event) -> None:
        if isinstance(event, FindingRaised):
            self._tell(
                f"checkengine {event.finding.kind}", event.finding.sequence, finding_attributes(event), event.time
            )
        elif isinstance(event, ActionTaken):
            action = event.action
            attributes = {"checkengine.action": action.kind.value, "checkengine.incident.id": action.incident}
            self._tell(f"checkengine {action.kind.value}", action.sequence, attributes, event.time)

    def _tell(self, name: str, sequence: str, attributes: Any, when: float) -> None:
        context = self._propagator.extract(self._headers.get(sequence, {}))
        moment = int(when * 1e9)
        given = {"gen_ai.response.id": sequence, **attributes}
        span = self._tracer.start_span(name, context, SpanKind.INTERNAL, given, start_time=moment)
        span.end(moment)
