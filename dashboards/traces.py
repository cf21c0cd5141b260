"""One OpenTelemetry span for each request, with the gen_ai.* attributes and without any content.

The conventions are in development (github.com/open-telemetry/semantic-conventions-genai, moved there 2026-05-05):
all names stand in this file, so that a change of theirs is a change here. A finding becomes the event
`gen_ai.evaluation.result` on the span of its request.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace import TracerProvider as AnyProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from checkengine.guards.errors import UserError
from checkengine.guards.events import ActionTaken, Event, FindingRaised

log = logging.getLogger("checkengine.traces")
MAX_OPEN_SPANS = 100_000
RECENT = 10_000
"""Sequences whose trace id is remembered: metrics and records of a request come after its span has ended."""

PROVIDER = "checkengine"
"""There is no well-known gen_ai.provider.name for an engine of one's own; the convention allows a custom value."""
REQUEST_ATTRIBUTES = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}


class Start(Protocol):
    """As the embedded server's observer is told; numbers and names only."""

    @property
    def request(self) -> str: ...
    @property
    def sequences(self) -> tuple[str, ...]: ...
    @property
    def operation(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def stream(self) -> bool: ...
    @property
    def sampling(self) -> Mapping[str, object]: ...
    @property
    def traceparent(self) -> Mapping[str, str]: ...


class Incident(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def incident(self) -> str: ...


class End(Protocol):
    @property
    def request(self) -> str: ...
    @property
    def finish_reasons(self) -> tuple[str, ...]: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def ttft_seconds(self) -> float | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def note(self) -> Incident | None: ...


@dataclass(slots=True)
class _Open:
    span: Span
    sequences: tuple[str, ...]


class RequestTraces:
    """Thread-safe: requests start and end on the server's loop, findings come from another thread."""

    def __init__(self, provider: AnyProvider) -> None:
        self._tracer: Tracer = provider.get_tracer("checkengine")
        self._propagator = TraceContextTextMapPropagator()
        self._lock = Lock()
        self._by_request: dict[str, _Open] = {}
        self._by_sequence: dict[str, Span] = {}
        self._recent: OrderedDict[str, str] = OrderedDict()

    def started(self, start: Start) -> None:
        """Open a span, as a child of the client's where it sent a traceparent."""
        if len(self._by_request) >= MAX_OPEN_SPANS:
            return
        span = self._tracer.start_span(
            f"{start.operation} {start.model}",
            context=self._propagator.extract(start.traceparent),
            kind=SpanKind.SERVER,
            attributes=request_attributes(start),
        )
        with self._lock:
            self._by_request[start.request] = _Open(span, start.sequences)
            self._by_sequence.update(dict.fromkeys(start.sequences, span))
            self._remember(start.sequences, span)

    def ended(self, end: End) -> None:
        with self._lock:
            known = self._by_request.pop(end.request, None)
            for name in known.sequences if known else ():
                self._by_sequence.pop(name, None)
        if known is not None:
            _finish(known.span, end)

    def handle(self, event: Event) -> None:
        """Event of the bus: findings and actions on sequences whose request is still open."""
        if isinstance(event, FindingRaised):
            if span := self._span_of(event.finding.sequence):
                span.add_event("gen_ai.evaluation.result", finding_attributes(event), int(event.time * 1e9))
        elif isinstance(event, ActionTaken) and (span := self._span_of(event.action.sequence)):
            attributes = {
                "checkengine.action": event.action.kind.value,
                "checkengine.finding.kind": event.action.finding,
                "checkengine.incident.id": event.action.incident,
            }
            span.add_event("checkengine.action", attributes, int(event.time * 1e9))

    @property
    def open_spans(self) -> int:
        return len(self._by_request)

    def trace_of(self, sequence: str) -> str:
        """Trace id of a sequence whose request is open or ended lately; empty where its span is not sampled."""
        with self._lock:
            return self._recent.get(sequence, "")

    def _remember(self, sequences: Sequence[str], span: Span) -> None:
        context = span.get_span_context()
        if context.trace_flags.sampled:
            self._recent.update(dict.fromkeys(sequences, f"{context.trace_id:032x}"))
        while len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    def _span_of(self, sequence: str) -> Span | None:
        with self._lock:
            return self._by_sequence.get(sequence)


def request_attributes(start: Start) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": start.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": start.model,
        "gen_ai.response.id": start.request,
        "gen_ai.response.model": start.model,
        "gen_ai.request.stream": start.stream,
        "gen_ai.output.type": "text",
    }
    if len(start.sequences) > 1:
        attributes["gen_ai.request.choice.count"] = len(start.sequences)
    for name, attribute in REQUEST_ATTRIBUTES.items():
        value = start.sampling.get(name)
        if isinstance(value, int | float):
            attributes[attribute] = value
    return attributes


def finding_attributes(event: FindingRaised) -> dict[str, AttributeValue]:
    """Evidence of a finding is numbers only, so all of it may leave the process."""
    finding = event.finding
    attributes: dict[str, AttributeValue] = {
        "gen_ai.evaluation.name": finding.guard,
        "gen_ai.evaluation.score.label": finding.kind,
        "checkengine.finding.primary": event.primary,
        "checkengine.finding.severity": finding.severity.name.lower(),
        "checkengine.finding.step": finding.step,
        "checkengine.finding.token": finding.token,
        "checkengine.incident.id": event.incident,
    }
    attributes.update({f"checkengine.evidence.{name}": value for name, value in finding.evidence.items()})
    return attributes


def _finish(span: Span, end: End) -> None:
    span.set_attribute("gen_ai.response.finish_reasons", list(end.finish_reasons))
    span.set_attribute("gen_ai.usage.input_tokens", end.prompt_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", end.output_tokens)
    span.set_attribute("gen_ai.usage.cache_read.input_tokens", end.cached_tokens)
    if end.ttft_seconds is not None:
        span.set_attribute("gen_ai.response.time_to_first_chunk", end.ttft_seconds)
    if end.note is not None:
        span.set_attribute("checkengine.finding.kind", end.note.kind)
        span.set_attribute("checkengine.incident.id", end.note.incident)
    if end.error is not None:
        span.set_attribute("error.type", end.error)
        span.set_status(Status(StatusCode.ERROR, end.error))
    span.end()


def tracer_provider(version: str, exporters: Sequence[SpanExporter]) -> TracerProvider:
    """A provider that sends to `exporters` from a thread of its own; with none, spans cost almost nothing and go
    nowhere. The batch processor drops the oldest spans when an exporter is too slow."""
    provider = TracerProvider(resource=Resource.create({"service.name": "checkengine", "service.version": version}))
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class CountedExporter(SpanExporter):
    """Counts what arrives and what does not: a number that must not travel by the path that is broken."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.counts: Counter[str] = Counter(delivered=0, failed=0)
        """Batches of spans, by outcome."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:
            self.counts["failed"] += 1
            raise
        self.counts["delivered" if result is SpanExportResult.SUCCESS else "failed"] += 1
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def notifications(self) -> dict[tuple[str, str], int]:
        """As metrics ask for it."""
        return {("otlp", outcome): count for outcome, count in self.counts.items()}


def otlp_exporter(endpoint: str) -> SpanExporter:
    """OTLP over HTTP to `endpoint` (…/v1/traces). Raises UserError where the `otel` extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise UserError(
            f"sending traces to {endpoint} needs the otel extra: pip install 'checkengine[otel]'"
        ) from error
    exporter: SpanExporter = OTLPSpanExporter(endpoint=endpoint)
    return exporter
