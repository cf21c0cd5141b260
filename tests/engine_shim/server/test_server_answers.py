"""What clients of the OpenAI API get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from checkengine.engine_shim.engine.request import IncidentNote

HELLO = [{"role": "user", "content": "hi"}]
NOTE = IncidentNote("logits.nonfinite", "inc-1")


def chat(client: TestClient, **fields: Any) -> Any:
    return client.post("/v1/chat/completions", json={"model": "scripted", "messages": HELLO, **fields})


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_chat_completion_has_openais_shape(client: TestClient) -> None:
    body = chat(client, max_tokens=3).json()
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "scripted")
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "w0 w1 w2 ", "refusal": None}
    assert choice["finish_reason"] == "length"
    assert "checkengine" not in body


def test_usage_counts_prompt_output_and_cached_tokens(client: TestClient) -> None:
    usage = chat(client, max_tokens=3).json()["usage"]
    prompt = len("<user>hi<assistant>")
    assert usage == {
        "prompt_tokens": prompt,
        "completion_tokens": 3,
        "total_tokens": prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_several_choices_share_the_prompt_and_have_seeds_of_their_own(client: TestClient, engine: Any) -> None:
    body = chat(client, max_tokens=2, n=3, seed=7).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == len("<user>hi<assistant>")
    assert body["usage"]["completion_tokens"] == 6
    assert [request.sampling.seed for request in engine.seen] == [7, 8, 9]


def test_sampling_parameters_reach_the_engine(client: TestClient, engine: Any) -> None:
    wanted = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "seed": 3,
        "ignore_eos": True,
        "stop": ["END", "\n\n"],
    }
    chat(client, max_completion_tokens=5, **wanted)
    sampling = engine.seen[0].sampling.model_dump()
    assert sampling["max_tokens"] == 5
    assert {name: sampling[name] for name in wanted} == {**wanted, "stop": ("END", "\n\n")}


def test_chat_without_a_limit_may_fill_the_context_and_a_completion_stops_at_openais_sixteen(
    client: TestClient, engine: Any
) -> None:
    chat(client)
    client.post("/v1/completions", json={"model": "scripted", "prompt": "abc"})
    assert [request.sampling.max_tokens for request in engine.seen] == [64 - len("<user>hi<assistant>"), 16]


def test_a_streamed_chat_begins_with_the_role_and_ends_with_reason_usage_and_done(client: TestClient) -> None:
    answer = chat(client, max_tokens=3, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = events(answer.text)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in chunks[:-1]) == "w0 w1 w2 "
    assert [part["choices"][0]["finish_reason"] for part in chunks[:-1]] == [None, None, None, "length"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert {part["object"] for part in chunks} == {"chat.completion.chunk"}
    assert len({part["id"] for part in chunks}) == 1


def test_a_stream_without_the_wish_for_usage_has_none(client: TestClient) -> None:
    assert all("usage" not in part for part in events(chat(client, max_tokens=2, stream=True).text))


def test_streamed_choices_are_told_apart_by_their_index(client: TestClient) -> None:
    texts = {0: "", 1: ""}
    for part in events(chat(client, max_tokens=3, n=2, stream=True).text):
        choice = part["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == {0: "w0 w1 w2 ", 1: "w0 w1 w2 "}


@pytest.mark.parametrize("prompt", ["ab", [65, 66]], ids=["text", "tokens"])
def test_a_completion_takes_text_or_tokens(client: TestClient, prompt: Any) -> None:
    body = client.post("/v1/completions", json={"model": "scripted", "prompt": prompt, "max_tokens": 2}).json()
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "w0 w1 "
    assert body["usage"]["prompt_tokens"] == 2


def test_a_completion_takes_several_prompts_at_once(client: TestClient, engine: Any) -> None:
    request = {"model": "scripted", "prompt": ["a", "bc"], "n": 2, "max_tokens": 1}
    body = client.post("/v1/completions", json=request).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [len(request.prompt_tokens) for request in engine.seen] == [1, 1, 2, 2]
    assert body["usage"]["prompt_tokens"] == 3


def test_a_streamed_completion_has_text_in_its_chunks(client: TestClient) -> None:
    request = {"model": "scripted", "prompt": "a", "max_tokens": 2, "stream": True}
    parts = events(client.post("/v1/completions", json=request).text)
    assert "".join(part["choices"][0]["text"] for part in parts) == "w0 w1 "


def test_a_guard_stop_has_an_openai_finish_reason_and_names_kind_and_incident_only(
    client: TestClient, engine: Any
) -> None:
    engine.stop_at = (2, NOTE)
    body = chat(client, max_tokens=9).json()
    assert body["choices"][0]["finish_reason"] == "content_filter"
    assert body["choices"][0]["message"]["content"] == "w0 w1 "
    assert body["checkengine"] == {"kind": "logits.nonfinite", "incident": "inc-1"}


def test_a_guard_stop_in_a_stream_is_told_in_the_last_chunk_of_its_choice(client: TestClient, engine: Any) -> None:
    engine.stop_at = (1, NOTE)
    parts = events(chat(client, max_tokens=9, stream=True).text)
    assert parts[-1]["choices"][0]["finish_reason"] == "content_filter"
    assert parts[-1]["checkengine"] == {"kind": "logits.nonfinite", "incident": "inc-1"}
    assert all("checkengine" not in part for part in parts[:-1])


def test_models_are_listed_and_found_by_name(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["scripted"]
    assert listed["data"][0]["max_model_len"] == 64
    assert client.get("/v1/models/scripted").json()["id"] == "scripted"
    assert client.get("/v1/models/other/model").json()["error"]["code"] == "model_not_found"


def test_messages_in_parts_are_joined_and_pictures_are_refused(client: TestClient, engine: Any) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    chat(client, messages=[{"role": "user", "content": parts}], max_tokens=1)
    chat(client, max_tokens=1)
    assert engine.seen[0].prompt_tokens == engine.seen[1].prompt_tokens
    picture = [{"type": "image_url", "image_url": {"url": "http://example.org/x.png"}}]
    refused = chat(client, messages=[{"role": "user", "content": picture}])
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith("messages[0].content")
