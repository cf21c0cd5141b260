"""Spans of the phases that the embedded engine measures: the queue, the prefix cache, the guards, the text."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

sys.path.insert(0, str(Path(__file__).parent))

from observed_run import tiny_model

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.dashboards.conventions import Phase
from checkengine.engine_shim.engine.engine import Engine
from checkengine.engine_shim.engine.request import GenerationRequest, SamplingParameters
from checkengine.engine_shim.settings import EngineSettings
from checkengine.serving import build_server

LOCAL: Any = {"base_url": "http://127.0.0.1:8000", "client": ("127.0.0.1", 50000)}
PROMPT = "a prompt of some length: " * 2
TOKENS = 6


class Traced:
    """The real server over a small engine; spans stay in memory."""

    def __init__(self, folder: Path) -> None:
        model, tokenizer = tiny_model()
        settings = Settings(
            engine={"blocks": 64, "block_size": 8, "threads": 1},
            audit={"enabled": False},
            spool={"enabled": False},
            capture={"directory": folder / "bundles"},
        )
        engine, shim = embed(model, tokenizer, settings)
        assert shim is not None
        self.exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.served = build_server(engine, shim, tokenizer, settings.server, name="tiny", provider=provider)
        self.client = TestClient(self.served.app, **LOCAL)
        self.client.__enter__()

    def ask(self, **more: Any) -> dict[str, ReadableSpan]:
        """Spans of one request by name; the request's own as `request`."""
        self.exporter.clear()
        body = {"model": "tiny", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "prompt": PROMPT}
        assert self.client.post("/v1/completions", json=body | more).status_code == 200
        spans = self.exporter.get_finished_spans()
        (request,) = [span for span in spans if span.kind is SpanKind.SERVER]
        others = [span for span in spans if span is not request]
        assert all(span.parent is not None and span.parent.span_id == request.context.span_id for span in others)
        return {"request": request} | {span.name: span for span in others}

    def close(self) -> None:
        self.client.__exit__(None, None, None)
        self.served.close()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    service = Traced(tmp_path_factory.mktemp("traced"))
    yield service
    service.close()


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_request_has_a_span_for_every_phase_of_the_engine(traced: Traced) -> None:
    spans = traced.ask()
    assert set(spans) == {"request", *Phase} - {Phase.CAPTURE}
    assert all(seconds(spans[phase]) > 0 for phase in (Phase.CACHE_LOOKUP, Phase.GUARD, Phase.DETOKENISE))
    assert spans[Phase.SCHEDULE].end_time == spans[Phase.CACHE_LOOKUP].end_time == spans[Phase.PREFILL].start_time
    assert spans[Phase.PREFILL].end_time == spans[Phase.DECODE].start_time == spans[Phase.DETOKENISE].start_time
    assert seconds(spans[Phase.GUARD]) < seconds(spans["request"])


def test_guards_take_a_turn_in_every_step_of_a_request(traced: Traced) -> None:
    traced.ask()
    # With all but the last token of the prompt known, each step samples one token.
    spans = traced.ask()
    assert (spans[Phase.GUARD].attributes or {})["checkengine.steps"] == TOKENS
    assert (spans[Phase.DETOKENISE].attributes or {})["checkengine.output_tokens"] == TOKENS


def test_the_look_up_tells_what_it_found(traced: Traced) -> None:
    traced.ask()
    found = (traced.ask()[Phase.CACHE_LOOKUP].attributes or {})["checkengine.cached_tokens"]
    assert found == 8 * ((len(PROMPT) - 1) // 8)


def test_choices_of_one_request_share_its_spans(traced: Traced) -> None:
    spans = traced.ask(n=2, temperature=0.9)
    assert set(spans) == {"request", *Phase} - {Phase.CAPTURE}
    assert (spans[Phase.DETOKENISE].attributes or {})["checkengine.output_tokens"] == 2 * TOKENS


def test_no_phase_holds_text_of_the_client(traced: Traced) -> None:
    assert all("prompt of some" not in span.to_json() for span in traced.ask().values())


def test_a_request_that_waits_for_another_shows_it_as_schedule() -> None:
    model, tokenizer = tiny_model()
    engine = Engine(model, tokenizer, EngineSettings(blocks=64, block_size=8, threads=1, maximum_sequences=1))
    sampling = SamplingParameters(temperature=0, max_tokens=4, ignore_eos=True)
    for name in ("first", "second"):
        engine.submit(GenerationRequest(name, [5, 6, 7], sampling))
    began, times = time.perf_counter(), {}
    first_took = 0.0
    while engine.has_work:
        for output in engine.step():
            if output.finish is not None:
                first_took = first_took or time.perf_counter() - began
                times[output.name] = output.phases
    assert times["first"] is not None
    assert times["second"] is not None
    assert times["first"].queued < first_took <= times["second"].queued
    assert times["first"].steps == times["second"].steps == 4
