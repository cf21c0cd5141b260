"""Malformed requests get OpenAI-shaped 4xx errors that say what, where and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from checkengine.engine_shim.engine.server import Service, build_app
from checkengine.engine_shim.settings import ServerSettings

HELLO = [{"role": "user", "content": "hi"}]
GOOD = {"model": "scripted", "messages": HELLO, "max_tokens": 1}


def error_of(answer: Any, status: int = 400) -> Any:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    return error


@pytest.mark.parametrize("body", [b"{", b"", b"[1", b'{"model": }', b"\xff\xfe", b"[" * 3000], ids=range(6))
def test_a_body_that_is_no_json_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert error_of(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HELLO, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 5}, "n"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"chat_template_kwargs": {"chat_template": "{{ 7 }}"}}, "chat_template_kwargs.chat_template"),
        ({"min_tokens": 5}, "min_tokens"),
    ],
)
def test_a_wrong_value_is_named(client: TestClient, change: dict[str, Any], param: str) -> None:
    error = error_of(client.post("/v1/chat/completions", json={**GOOD, **change}))
    assert error["param"] == param
    assert param in error["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_no_numbers_are_refused(client: TestClient, number: str) -> None:
    body = json.dumps(GOOD)[:-1] + f', "temperature": {number}}}'
    answer = client.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert error_of(answer)["param"] in ("temperature", None)


def test_logprobs_that_ask_for_nothing_are_no_error(client: TestClient) -> None:
    assert client.post("/v1/chat/completions", json={**GOOD, "logprobs": False}).status_code == 200


@pytest.mark.parametrize("prompt", [[], "", [[]], [1, "a"], [70000], [-1], {}, None], ids=str)
def test_a_prompt_that_is_none_is_refused(client: TestClient, prompt: Any) -> None:
    error_of(client.post("/v1/completions", json={"model": "scripted", "prompt": prompt}))


@pytest.mark.parametrize("change", [{"echo": True}, {"suffix": "x"}, {"best_of": 2}, {"logprobs": 1}], ids=str)
def test_what_completions_cannot_do_is_refused(client: TestClient, change: dict[str, Any]) -> None:
    body = {"model": "scripted", "prompt": "a", **change}
    assert error_of(client.post("/v1/completions", json=body))["param"] == next(iter(change))


def test_a_prompt_longer_than_the_context_gets_openais_code(client: TestClient) -> None:
    long = [{"role": "user", "content": "x" * 100}]
    error = error_of(client.post("/v1/chat/completions", json={**GOOD, "messages": long}))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "64 tokens" in error["message"]


def test_prompt_and_output_together_longer_than_the_context_get_openais_code(client: TestClient) -> None:
    error = error_of(client.post("/v1/completions", json={"model": "scripted", "prompt": "a", "max_tokens": 64}))
    assert error["code"] == "context_length_exceeded"


def test_an_unknown_model_is_404_and_names_the_one_that_is_here(client: TestClient) -> None:
    error = error_of(client.post("/v1/chat/completions", json={**GOOD, "model": "gpt-9"}), 404)
    assert error["code"] == "model_not_found"
    assert "scripted" in error["message"]


def test_half_a_surrogate_pair_is_an_error_of_the_client(client: TestClient) -> None:
    body = '{"model": "scripted", "prompt": "\\ud800"}'
    answer = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert error_of(answer)["param"] == "prompt"


def test_what_the_template_refuses_is_an_error_of_the_client(client: TestClient) -> None:
    messages = [{"role": "tool", "content": "x"}]
    error = error_of(client.post("/v1/chat/completions", json={**GOOD, "messages": messages}))
    assert "no tool first" in error["message"]


def test_what_the_engine_can_never_run_is_an_error_of_the_client(client: TestClient, engine: Any) -> None:
    engine.refuse = "needs 9 KV blocks, there are 8"
    for stream in (False, True):
        error = error_of(client.post("/v1/chat/completions", json={**GOOD, "stream": stream}))
        assert "9 KV blocks" in error["message"]


def test_unknown_addresses_and_methods_are_openai_shaped_too(client: TestClient) -> None:
    assert error_of(client.post("/v1/embeddings", json={}), 404)["code"] == "not_found"
    assert error_of(client.get("/v1/chat/completions"), 405)["code"] == "method_not_allowed"


def test_a_body_that_is_too_large_is_refused_by_its_announced_length(client: TestClient) -> None:
    answer = client.post("/v1/completions", json={"model": "scripted", "prompt": "x" * 5000})
    assert error_of(answer, 413)["code"] == "body_too_large"


def test_a_body_that_does_not_say_how_large_it_is_is_refused_once_it_is_too_large(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"model": "scripted", "prompt": "'
        for _ in range(5):
            yield b"x" * 1000
        yield b'"}'

    answer = client.post("/v1/completions", content=pieces(), headers={"Content-Type": "application/json"})
    assert error_of(answer, 413)["code"] == "body_too_large"


def test_an_engine_that_fails_ends_all_requests_and_is_not_live(client: TestClient, engine: Any) -> None:
    engine.fail_at = 2
    error = error_of(client.post("/v1/chat/completions", json={**GOOD, "max_tokens": 9}), 500)
    assert error["code"] == "engine_failed"
    assert client.get("/healthz/live").json() == {"status": "failed"}
    assert error_of(client.post("/v1/chat/completions", json=GOOD), 503)["code"] == "not_accepting"


def test_an_engine_that_fails_in_the_middle_of_a_stream_says_so_in_an_event(client: TestClient, engine: Any) -> None:
    engine.fail_at = 2
    text = client.post("/v1/chat/completions", json={**GOOD, "max_tokens": 9, "stream": True}).text
    last = json.loads(text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "engine_failed"
    assert "[DONE]" not in text


def test_more_requests_than_the_server_takes_are_told_to_come_back(service: Service, engine: Any) -> None:
    service.settings = ServerSettings(max_requests=2)
    engine.may_step.clear()
    with TestClient(build_app(service)) as client, ThreadPoolExecutor() as pool:
        running = pool.submit(client.post, "/v1/chat/completions", json=GOOD)
        assert engine.wait_for(lambda: bool(engine.live))
        answer = client.post("/v1/chat/completions", json={**GOOD, "n": 2})
        engine.may_step.set()
        assert running.result(20).status_code == 200
    assert error_of(answer, 429)["type"] == "rate_limit_error"
    assert answer.headers["retry-after"] == "1"


def test_one_request_for_more_than_the_server_ever_takes_is_not_told_to_come_back(service: Service) -> None:
    service.settings = ServerSettings(max_requests=2)
    with TestClient(build_app(service)) as client:
        choices = client.post("/v1/chat/completions", json={**GOOD, "n": 3})
        prompts = client.post("/v1/completions", json={"model": "scripted", "prompt": ["a"] * 3})
    assert (error_of(choices)["param"], error_of(prompts)["param"]) == ("n", "prompt")
    assert "retry-after" not in choices.headers


@pytest.mark.parametrize("text", ["\ud800", "x" * 3000, "a\nb"], ids=["surrogate", "long", "newline"])
def test_what_a_client_wrote_comes_back_in_an_error_that_is_short_and_can_be_sent(
    client: TestClient, text: str
) -> None:
    headers = {"Content-Type": "application/json"}
    for path, body, status in (
        ("/v1/chat/completions", {**GOOD, "model": text}, 404),
        ("/v1/chat/completions", {**GOOD, text: 1}, 400),
        ("/v1/completions", {"model": text, "prompt": "x"}, 404),
    ):
        message = error_of(client.post(path, content=json.dumps(body), headers=headers), status)["message"]
        assert len(message) < 1100
        assert not message.startswith("None")


def test_a_model_without_a_chat_template_serves_completions_only(service: Service) -> None:
    service.tokenizer.chat_template = None
    with TestClient(build_app(service)) as client:
        assert error_of(client.post("/v1/chat/completions", json=GOOD))["code"] == "no_chat_template"
        assert client.post("/v1/completions", json={"model": "scripted", "prompt": "a"}).status_code == 200
