"""One OpenTelemetry span for each request, with the gen_ai.* attributes and without any content.

A request has a child for each of its phases (names in `conventions`), and a capture where one was written of it. A
finding becomes the event `gen_ai.evaluation.result` on the span of its request: what the guard says; what was done is
an event of its own.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace import TracerProvider as AnyProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from checkengine.dashboards.conventions import CACHED, CONVENTIONS, EVALUATION, OUTPUT, STEPS, Phase, Version
from checkengine.dashboards.request_end import PhaseTimes, RequestEnd
from checkengine.guards.errors import UserError
from checkengine.guards.events import ActionTaken, BundleWritten, Event, FindingRaised

log = logging.getLogger("checkengine.traces")
MAX_OPEN_SPANS = 100_000
MOST_INCIDENTS = 1000
SCORES = ("score", "log_evidence", "probability", "p_value", "nan", "count")
"""Names under which evidence holds the number that a guard judged by, the best first."""
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


class End(RequestEnd, Protocol):
    @property
    def request(self) -> str: ...


@dataclass(slots=True)
class _Open:
    span: Span
    sequences: tuple[str, ...]
    arrived: float
    """Unix seconds."""


class RequestTraces:
    """Thread-safe: requests start and end on the server's loop, findings come from another thread."""

    def __init__(
        self, provider: AnyProvider, version: Version = "latest", clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives Unix seconds."""
        self._tracer: Tracer = provider.get_tracer("checkengine")
        self._convention, self._clock = CONVENTIONS[version], clock
        self._propagator = TraceContextTextMapPropagator()
        self._lock = Lock()
        self._by_request: dict[str, _Open] = {}
        self._by_sequence: dict[str, Span] = {}
        self._recent: OrderedDict[str, str] = OrderedDict()
        self._struck: OrderedDict[str, tuple[Span, float]] = OrderedDict()
        """By incident, the span of its first sequence, and when the finding came."""

    def started(self, start: Start) -> None:
        """Open a span, as a child of the client's where it sent a traceparent."""
        if len(self._by_request) >= MAX_OPEN_SPANS:
            return
        now = self._clock()
        begun = now - getattr(start, "tokenise_seconds", 0.0)
        span = self._tracer.start_span(
            f"{start.operation} {start.model}",
            context=self._propagator.extract(start.traceparent),
            kind=SpanKind.SERVER,
            attributes=self._convention.attributes(request_attributes(start)),
            start_time=nanoseconds(begun),
        )
        if begun < now:
            self._child(span, Phase.TOKENISE, begun, now)
        with self._lock:
            self._by_request[start.request] = _Open(span, start.sequences, now)
            self._by_sequence.update(dict.fromkeys(start.sequences, span))
            self._remember(start.sequences, span)

    def ended(self, end: End) -> None:
        with self._lock:
            known = self._by_request.pop(end.request, None)
            for name in known.sequences if known else ():
                self._by_sequence.pop(name, None)
        if known is not None:
            self._phases(known, end)
            known.span.set_attributes(self._convention.attributes(end_attributes(end)))
            if end.error is not None:
                known.span.set_status(Status(StatusCode.ERROR, end.error))
            known.span.end(nanoseconds(self._clock()))

    def handle(self, event: Event) -> None:
        """Event of the bus: findings and actions on sequences whose request is still open."""
        if isinstance(event, FindingRaised):
            if span := self._span_of(event.finding.sequence):
                self._remember_incident(event, span)
                attributes = self._convention.attributes(finding_attributes(event))
                span.add_event(self._convention.name(EVALUATION), attributes, nanoseconds(event.time))
        elif isinstance(event, BundleWritten):
            self._capture(event)
        elif isinstance(event, ActionTaken) and (span := self._span_of(event.action.sequence)):
            attributes = {
                "checkengine.action": event.action.kind.value,
                "checkengine.finding.kind": event.action.finding,
                "checkengine.incident.id": event.action.incident,
            }
            span.add_event("checkengine.action", attributes, nanoseconds(event.time))

    @property
    def open_spans(self) -> int:
        return len(self._by_request)

    def _phases(self, known: _Open, end: End) -> None:
        """From its arrival to the first token, and from there to the end."""
        if end.ttft_seconds is None:
            return
        span, first = known.span, known.arrived + end.ttft_seconds
        times: PhaseTimes | None = getattr(end, "phases", None)
        admitted = known.arrived if times is None else min(known.arrived + times.queued, first)
        self._child(span, Phase.PREFILL, admitted, first, {CACHED: end.cached_tokens})
        self._child(span, Phase.DECODE, first, max(first, self._clock()), {OUTPUT: end.output_tokens})
        if times is not None:
            self._child(span, Phase.SCHEDULE, known.arrived, admitted)
            looked = max(known.arrived, admitted - times.lookup)
            self._child(span, Phase.CACHE_LOOKUP, looked, admitted, {CACHED: end.cached_tokens})
            # Many short turns, one in each step: laid end to end from where the first of them was.
            self._child(span, Phase.GUARD, admitted, admitted + times.guard, {STEPS: times.steps})
            self._child(span, Phase.DETOKENISE, first, first + times.detokenise, {OUTPUT: end.output_tokens})

    def _remember_incident(self, event: FindingRaised, span: Span) -> None:
        with self._lock:
            if event.primary and event.incident and event.incident not in self._struck:
                self._struck[event.incident] = (span, event.time)
            if len(self._struck) > MOST_INCIDENTS:
                self._struck.popitem(last=False)

    def _capture(self, event: BundleWritten) -> None:
        """From the finding to the bundle on the disk; the request itself may have ended meanwhile."""
        with self._lock:
            known = self._struck.get(event.incident)
        if known is not None:
            span, begun = known
            words: dict[str, AttributeValue] = {"checkengine.bundle.id": event.bundle}
            self._child(span, Phase.CAPTURE, begun, event.time, words | {"checkengine.incident.id": event.incident})

    def _child(
        self, span: Span, name: str, begin: float, end: float, attributes: Mapping[str, AttributeValue] | None = None
    ) -> None:
        child = self._tracer.start_span(
            name, set_span_in_context(span), start_time=nanoseconds(begin), attributes=dict(attributes or {})
        )
        child.end(nanoseconds(end))

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


def nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


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
    if (score := score_of(finding.evidence)) is not None:
        attributes["gen_ai.evaluation.score.value"] = score
    attributes.update({f"checkengine.evidence.{name}": value for name, value in finding.evidence.items()})
    return attributes


def score_of(evidence: Mapping[str, float | int | bool]) -> float | None:
    """The number that the guard judged by, where it names one."""
    values = (evidence.get(name) for name in SCORES)
    return next((float(value) for value in values if isinstance(value, int | float)), None)


def end_attributes(end: End) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "gen_ai.response.finish_reasons": list(end.finish_reasons),
        "gen_ai.usage.input_tokens": end.prompt_tokens,
        "gen_ai.usage.output_tokens": end.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": end.cached_tokens,
    }
    if end.ttft_seconds is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = end.ttft_seconds
    if end.note is not None:
        attributes |= {"checkengine.finding.kind": end.note.kind, "checkengine.incident.id": end.note.incident}
    if end.error is not None:
        attributes["error.type"] = end.error
    return attributes


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
