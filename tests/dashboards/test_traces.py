"""One span a request, with gen_ai.* attributes and no content."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

sys.path.insert(0, str(Path(__file__).parent))

from monitoring import Received

from checkengine.dashboards.traces import CountedExporter, RequestTraces, otlp_exporter, tracer_provider
from checkengine.guards.action import Action, ActionKind
from checkengine.guards.errors import UserError
from checkengine.guards.events import ActionTaken, BundleWritten, FindingRaised, GuardDisabled
from checkengine.guards.finding import Finding, Severity


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter: InMemorySpanExporter) -> RequestTraces:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return RequestTraces(provider)


def start(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "request": "chatcmpl-1",
        "sequences": ("chatcmpl-1-0",),
        "operation": "chat",
        "model": "smollm2-135m",
        "stream": True,
        "sampling": {"temperature": 0.5, "top_k": 40, "max_tokens": 9, "seed": 3, "stop": ("secret",)},
        "traceparent": {},
    }
    return SimpleNamespace(**{**fields, **changes})


def end(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "request": "chatcmpl-1",
        "finish_reasons": ("stop",),
        "prompt_tokens": 30,
        "output_tokens": 9,
        "cached_tokens": 16,
        "ttft_seconds": 0.25,
        "error": None,
        "note": None,
    }
    return SimpleNamespace(**{**fields, **changes})


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    """The request's; its phases are spans of their own."""
    (span,) = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER]
    return span


def children(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    request = only(exporter)
    found = {span.name: span for span in exporter.get_finished_spans() if span is not request}
    assert all(span.parent is not None and span.parent.span_id == request.context.span_id for span in found.values())
    return found


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time / 1e9, span.end_time / 1e9


def test_a_request_is_one_span_with_the_conventions_attributes(
    traces: RequestTraces, exporter: InMemorySpanExporter
) -> None:
    traces.started(start())
    traces.ended(end())
    span = only(exporter)
    assert span.name == "chat smollm2-135m"
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "checkengine",
        "gen_ai.request.model": "smollm2-135m",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "smollm2-135m",
        "gen_ai.request.stream": True,
        "gen_ai.output.type": "text",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 3,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.response.time_to_first_chunk": 0.25,
    }
    assert span.status.status_code is StatusCode.UNSET


def test_a_request_has_a_child_for_each_of_its_phases(exporter: InMemorySpanExporter) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    now = [1000.0]
    traces = RequestTraces(provider, clock=lambda: now[0])
    traces.started(start(tokenise_seconds=0.5))
    found = Finding("logits.nonfinite", "chatcmpl-1-0", Severity.ERROR, 7, 3, "nonfinite")
    traces.handle(FindingRaised(found, "inc-1", 1001.0, True))
    now[0] = 1002.0
    traces.ended(end())
    traces.handle(BundleWritten("b-1", "inc-1", "/nowhere", 1005.0))
    traces.handle(BundleWritten("b-2", "inc-other", "/nowhere", 1005.0))
    phases = children(exporter)
    assert {name: seconds(span) for name, span in phases.items()} == {
        "tokenise": (999.5, 1000.0),
        "prefill": (1000.0, 1000.25),
        "decode": (1000.25, 1002.0),
        "capture": (1001.0, 1005.0),
    }
    assert seconds(only(exporter)) == (999.5, 1002.0)
    assert dict(phases["capture"].attributes or {}) == {
        "checkengine.bundle.id": "b-1",
        "checkengine.incident.id": "inc-1",
    }
    assert "/nowhere" not in str([span.attributes for span in exporter.get_finished_spans()])


def test_an_older_version_of_the_conventions_gets_the_names_that_it_knows(exporter: InMemorySpanExporter) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = RequestTraces(provider, "1.36")
    traces.started(start())
    traces.handle(FindingRaised(Finding("k", "chatcmpl-1-0", Severity.ERROR, 7, 3, "g"), "inc-1", 1.0, True))
    traces.ended(end())
    span = only(exporter)
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.system"] == "checkengine"
    assert attributes["checkengine.usage.cache_read.input_tokens"] == 16
    assert "gen_ai.provider.name" not in attributes
    assert [event.name for event in span.events] == ["checkengine.evaluation.result"]


def test_every_name_of_today_is_one_of_opentelemetrys_own_list(
    traces: RequestTraces, exporter: InMemorySpanExporter
) -> None:
    traces.started(
        start(sequences=("a", "b"), sampling={"presence_penalty": 1.0, "frequency_penalty": 1.0, "top_p": 0.5})
    )
    evidence = {"score": 0.5}
    traces.handle(FindingRaised(Finding("k", "a", Severity.ERROR, 7, 3, "g", evidence=evidence), "inc-1", 1.0, True))
    traces.ended(end())
    span = only(exporter)
    used = {*dict(span.attributes or {}), *dict(span.events[0].attributes or {})}
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    ours = {name for name in used if name.startswith("gen_ai.")}
    assert ours <= known
    assert "gen_ai.evaluation.score.value" in ours


def test_what_does_not_arrive_is_counted() -> None:
    class Broken(InMemorySpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.FAILURE

    class Raising(InMemorySpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            raise OSError("planted")

    for inner, outcome in ((InMemorySpanExporter(), "delivered"), (Broken(), "failed"), (Raising(), "failed")):
        counted = CountedExporter(inner)
        provider = tracer_provider("1", [counted])
        traces = RequestTraces(provider)
        traces.started(start())
        traces.ended(end())
        provider.shutdown()
        assert counted.notifications()[("otlp", outcome)] == 1


def test_the_trace_of_a_sequence_is_known_while_it_runs_and_a_while_after(traces: RequestTraces) -> None:
    assert traces.trace_of("chatcmpl-1-0") == ""
    traces.started(start(traceparent={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}))
    traces.ended(end())
    assert traces.trace_of("chatcmpl-1-0") == "0af7651916cd43dd8448eb211c80319c"
    for number in range(10_000):
        traces.started(start(request=f"r{number}", sequences=(f"r{number}-0",)))
        traces.ended(end(request=f"r{number}", ttft_seconds=None))
    assert traces.trace_of("chatcmpl-1-0") == ""


def test_the_span_continues_the_clients_trace(traces: RequestTraces, exporter: InMemorySpanExporter) -> None:
    traces.started(start(traceparent={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}))
    traces.ended(end())
    span = only(exporter)
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


def test_a_damaged_traceparent_begins_a_trace_of_its_own(traces: RequestTraces, exporter: InMemorySpanExporter) -> None:
    traces.started(start(traceparent={"traceparent": "00-zz-1-1\n"}))
    traces.ended(end())
    assert only(exporter).parent is None


def test_findings_and_actions_are_events_on_the_span_of_their_choice(
    traces: RequestTraces, exporter: InMemorySpanExporter
) -> None:
    traces.started(start(sequences=("chatcmpl-1-0", "chatcmpl-1-1")))
    finding = Finding("logits.nonfinite", "chatcmpl-1-1", Severity.ERROR, 7, 3, "nonfinite", evidence={"nan": 49152})
    traces.handle(FindingRaised(finding, "inc-1", 1700000000.5, True))
    traces.handle(ActionTaken(Action(ActionKind.STOP, "chatcmpl-1-1", "logits.nonfinite", "inc-1", 3), 1700000000.6))
    traces.handle(FindingRaised(Finding("x", "other", Severity.INFO, 1, 0, "g"), "inc-2", 1.0, True))
    traces.handle(GuardDisabled("language", "raised", 1.0))
    traces.ended(end(note=SimpleNamespace(kind="logits.nonfinite", incident="inc-1")))
    span = only(exporter)
    found, acted = span.events
    assert (found.name, found.timestamp) == ("gen_ai.evaluation.result", 1700000000500000000)
    assert found.attributes is not None
    assert found.attributes["gen_ai.evaluation.name"] == "nonfinite"
    assert found.attributes["gen_ai.evaluation.score.label"] == "logits.nonfinite"
    assert found.attributes["checkengine.evidence.nan"] == 49152
    assert found.attributes["checkengine.incident.id"] == "inc-1"
    assert acted.attributes is not None
    assert acted.attributes["checkengine.action"] == "stop"
    assert span.attributes is not None
    assert span.attributes["checkengine.incident.id"] == "inc-1"
    assert span.attributes["gen_ai.request.choice.count"] == 2


def test_a_request_that_failed_is_a_span_with_an_error(traces: RequestTraces, exporter: InMemorySpanExporter) -> None:
    traces.started(start())
    traces.ended(end(error="cancelled", ttft_seconds=None))
    span = only(exporter)
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "cancelled"


def test_no_text_of_the_client_is_in_a_span(traces: RequestTraces, exporter: InMemorySpanExporter) -> None:
    traces.started(start())
    traces.ended(end())
    assert "secret" not in only(exporter).to_json()


def test_what_ended_is_forgotten(traces: RequestTraces, exporter: InMemorySpanExporter) -> None:
    for number in range(3):
        traces.started(start(request=f"r{number}", sequences=(f"r{number}-0",)))
        traces.ended(end(request=f"r{number}"))
    traces.ended(end(request="never started"))
    assert traces.open_spans == 0
    traces.handle(FindingRaised(Finding("x", "r0-0", Severity.INFO, 1, 0, "g"), "i", 1.0, True))
    assert all(not span.events for span in exporter.get_finished_spans())


def test_without_an_exporter_nothing_is_sent_and_nothing_breaks() -> None:
    provider = tracer_provider("1.2.3", [])
    traces = RequestTraces(provider)
    traces.started(start())
    traces.ended(end())
    assert provider.force_flush(1000)
    assert provider.resource.attributes["service.name"] == "checkengine"


def test_spans_reach_the_configured_exporter_by_shutdown() -> None:
    exporter = InMemorySpanExporter()
    provider = tracer_provider("1.2.3", [exporter])
    traces = RequestTraces(provider)
    traces.started(start())
    traces.ended(end())
    provider.shutdown()
    assert only(exporter).resource.attributes["service.version"] == "1.2.3"


def test_spans_arrive_at_an_otlp_collector_and_hold_no_content() -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    collector = Received()
    exporter = CountedExporter(otlp_exporter(f"http://127.0.0.1:{collector.port}/v1/traces"))
    provider = tracer_provider("1.2.3", [exporter])
    traces = RequestTraces(provider)
    traces.started(start(sampling={"temperature": 0.5, "stop": ("secret",)}))
    traces.ended(end())
    provider.shutdown()
    collector.close()
    ((path, headers, body),) = collector.posts
    assert path == "/v1/traces"
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    sent = ExportTraceServiceRequest.FromString(body)
    names = [span.name for each in sent.resource_spans for scope in each.scope_spans for span in scope.spans]
    assert sorted(names) == ["chat smollm2-135m", "decode", "prefill"]
    assert b"secret" not in body
    assert exporter.notifications() == {("otlp", "delivered"): 1, ("otlp", "failed"): 0}


def test_a_collector_that_is_away_costs_spans_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    exporter = CountedExporter(otlp_exporter("http://127.0.0.1:1/v1/traces"))
    provider = tracer_provider("1.2.3", [exporter])
    traces = RequestTraces(provider)
    traces.started(start())
    traces.ended(end())
    provider.shutdown()
    assert exporter.counts["failed"] == 1


def test_an_otlp_endpoint_without_the_extra_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UserError, match=r"checkengine\[otel\]"):
        otlp_exporter("http://localhost:4318/v1/traces")
