"""Findings inside vLLM, in the trace of their request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from checkengine.guards.action import Action, ActionKind
from checkengine.guards.events import ActionTaken, FindingRaised
from checkengine.guards.finding import Finding, Severity
from checkengine.vllm_traces import FindingSpans

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
FINDING = Finding("logits.nonfinite", "a", Severity.ERROR, 7, 3, "nonfinite", 1, {"nan": 2})


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> FindingSpans:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return FindingSpans(provider)


def test_a_finding_and_its_stop_are_in_the_trace_of_their_request(
    spans: FindingSpans, exporter: InMemorySpanExporter
) -> None:
    spans.begun(SimpleNamespace(request_id="a", trace_headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}))
    spans.handle(FindingRaised(FINDING, "inc-1", 100.0, True))
    spans.handle(ActionTaken(Action(ActionKind.STOP, "a", FINDING.kind, "inc-1", 3), 100.5))
    found, stopped = exporter.get_finished_spans()
    assert f"{found.context.trace_id:032x}" == TRACE
    assert f"{stopped.context.trace_id:032x}" == TRACE
    assert found.name == "checkengine logits.nonfinite"
    assert dict(found.attributes or {})["checkengine.evidence.nan"] == 2
    assert dict(stopped.attributes or {})["checkengine.action"] == "stop"
    assert found.start_time == 100_000_000_000


def test_a_request_without_a_trace_has_one_of_its_own(spans: FindingSpans, exporter: InMemorySpanExporter) -> None:
    spans.begun(SimpleNamespace(request_id="a", trace_headers=None))
    spans.handle(FindingRaised(FINDING, "inc-1", 100.0, True))
    (found,) = exporter.get_finished_spans()
    assert found.parent is None
