"""The whole server over a small random model: a fault is caught, told to the client, counted and traced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from checkengine.assemble import embed
from checkengine.config import Settings
from checkengine.engine_shim.faults.nan_attention import NanAttention
from checkengine.serving import Served, build_server

BODY = {"model": "tiny", "prompt": "x" * 20, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
LOCAL = {"base_url": "http://127.0.0.1:8000", "client": ("127.0.0.1", 50000)}


def tiny_model() -> tuple[Any, Any]:
    """A random Llama over single bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=255,
    )
    return LlamaForCausalLM(config).eval(), PreTrainedTokenizerFast(tokenizer_object=inner)


class Stage:
    """A served engine with an exporter that keeps what it is sent."""

    def __init__(self, served: Served, exporter: InMemorySpanExporter, shim: Any) -> None:
        self.served, self.exporter, self.shim = served, exporter, shim


def stage(faults: list[Any], **sections: Any) -> Stage:
    model, tokenizer = tiny_model()
    settings = Settings(engine={"blocks": 32, "block_size": 8, "threads": 1}, capture={"enabled": False}, **sections)
    engine, shim = embed(model, tokenizer, settings, faults)
    assert shim is not None
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    served = build_server(engine, shim, tokenizer, settings.server, name="tiny", provider=provider)
    return Stage(served, exporter, shim)


@pytest.fixture(scope="module")
def healthy() -> Iterator[tuple[Stage, TestClient]]:
    on_stage = stage([])
    with TestClient(on_stage.served.app, **LOCAL) as client:
        yield on_stage, client
    on_stage.served.close()


@pytest.fixture(scope="module")
def faulty() -> Iterator[tuple[Stage, TestClient]]:
    on_stage = stage([NanAttention(modulus=8, remainder=1, layer=1)])
    with TestClient(on_stage.served.app, **LOCAL) as client:
        yield on_stage, client
    on_stage.served.close()


def test_a_healthy_engine_serves_with_no_finding(healthy: tuple[Stage, TestClient]) -> None:
    _, client = healthy
    body = client.post("/v1/completions", json=BODY).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 24
    assert "checkengine_findings_total{" not in client.get("/metrics").text


def test_a_guard_that_the_configuration_switches_off_is_no_guard_that_is_missing() -> None:
    on_stage = stage([], guards={"salad": {"action": "off"}})
    text = on_stage.served.metrics.exposition()[0].decode()
    on_stage.served.close()
    assert 'checkengine_guard_active{guard="nonfinite"} 1.0' in text
    assert 'checkengine_guard_active{guard="salad"}' not in text


def test_the_engine_has_run_once_before_the_server_is_ready_and_left_nothing(healthy: tuple[Stage, TestClient]) -> None:
    on_stage, client = healthy
    assert on_stage.served.runtime.wait_ready(20)
    assert on_stage.served.runtime.engine.stats.steps >= 2
    sequences = [
        line for line in client.get("/metrics").text.splitlines() if line.startswith("checkengine_sequences_r")
    ]
    assert sequences == ["checkengine_sequences_running 0.0"]


def test_the_second_of_two_equal_prompts_finds_its_prefix_in_the_cache(healthy: tuple[Stage, TestClient]) -> None:
    _, client = healthy
    first, second = (client.post("/v1/completions", json={**BODY, "prompt": "y" * 20}).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
    assert first["choices"][0]["text"] == second["choices"][0]["text"]


def test_sampled_choices_repeat_with_their_seed_and_differ_from_each_other(healthy: tuple[Stage, TestClient]) -> None:
    _, client = healthy
    sampled = {**BODY, "temperature": 1.0, "seed": 5, "n": 2}
    first, second = (client.post("/v1/completions", json=sampled).json()["choices"] for _ in range(2))
    assert [choice["text"] for choice in first] == [choice["text"] for choice in second]
    assert first[0]["text"] != first[1]["text"]


def test_a_nan_is_stopped_told_to_the_client_counted_and_traced(faulty: tuple[Stage, TestClient]) -> None:
    """The first decode row of length 25, which is 1 modulo 8, is poisoned: four good tokens, and the fifth is not."""
    on_stage, client = faulty
    body = client.post("/v1/completions", json=BODY).json()
    choice = body["choices"][0]
    assert choice["finish_reason"] == "content_filter"
    assert body["usage"]["completion_tokens"] < 24
    assert body["checkengine"]["kind"] == "logits.nonfinite"
    incident = body["checkengine"]["incident"]
    assert incident
    on_stage.shim.assembly.bus.close()
    metrics = client.get("/metrics").text
    assert 'checkengine_incidents_total{kind="logits.nonfinite"} 1.0' in metrics
    assert 'checkengine_actions_total{action="stop",kind="logits.nonfinite"} 1.0' in metrics
    assert 'checkengine_sequences_total{finish_reason="content_filter"} 1.0' in metrics
    span = on_stage.exporter.get_finished_spans()[-1]
    assert (span.attributes or {})["checkengine.incident.id"] == incident
    assert (span.attributes or {})["gen_ai.response.finish_reasons"] == ("content_filter",)
    events = [(event.name, dict(event.attributes or {})) for event in span.events]
    assert [name for name, _ in events].count("gen_ai.evaluation.result") >= 1
    assert "stop" in [attributes.get("checkengine.action") for _, attributes in events]
    assert {attributes["checkengine.incident.id"] for _, attributes in events} == {incident}


def test_a_guard_that_is_switched_off_stops_nothing_until_it_is_on_again() -> None:
    on_stage = stage([NanAttention(modulus=8, remainder=1, layer=1)])
    with TestClient(on_stage.served.app, **LOCAL) as client:
        for name in ("nonfinite", "uniform", "repetition"):
            assert client.post(f"/checkengine/guards/{name}", json={"action": "disable"}).status_code == 200
        unguarded = client.post("/v1/completions", json=BODY).json()
        assert unguarded["choices"][0]["finish_reason"] == "length"
        assert 'checkengine_guard_active{guard="nonfinite"} 0.0' in client.get("/metrics").text
        client.post("/checkengine/guards/nonfinite", json={"action": "rearm"})
        guarded = client.post("/v1/completions", json={**BODY, "prompt": "z" * 20}).json()
        assert guarded["checkengine"]["kind"] == "logits.nonfinite"
    on_stage.served.close()


def test_the_whole_sidecar_is_switched_off_and_on() -> None:
    on_stage = stage([NanAttention(modulus=8, remainder=1, layer=1)])
    with TestClient(on_stage.served.app, **LOCAL) as client:
        client.post("/checkengine/guards/sidecar", json={"action": "disable"})
        listed = {guard["name"]: guard for guard in client.get("/checkengine/guards").json()["guards"]}
        assert listed["sidecar"] == {"name": "sidecar", "active": False, "reason": "switched off"}
        assert not any(guard["active"] for guard in listed.values())
        assert 'checkengine_guard_active{guard="nonfinite"} 0.0' in client.get("/metrics").text
        assert client.post("/v1/completions", json=BODY).json()["choices"][0]["finish_reason"] == "length"
        client.post("/checkengine/guards/sidecar", json={"action": "enable"})
        guarded = client.post("/v1/completions", json={**BODY, "prompt": "z" * 20}).json()
        assert guarded["checkengine"]["kind"] == "logits.nonfinite"
    on_stage.served.close()
