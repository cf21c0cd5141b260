"""From messages to the prompt, and bodies of any shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from checkengine.engine_shim.engine.server import Service
from checkengine.engine_shim.engine.server_errors import ApiError
from checkengine.engine_shim.engine.server_prompt import chat_tokens, require_room
from checkengine.engine_shim.engine.server_requests import ChatBody

SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "Paris"}'}}
KNOWS_TOOLS = (
    "{% if tools %}TOOLS={{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}CALL={{ c.function.arguments.q }}{% endfor %}{% endfor %}"
)


@pytest.fixture
def tokenizer(service: Service) -> PreTrainedTokenizerFast:
    return service.tokenizer


def prompt(tokenizer: Any, messages: list[Any], **fields: Any) -> str:
    body = ChatBody.model_validate({"model": "m", "messages": messages, **fields})
    return tokenizer.decode(chat_tokens(tokenizer, body))


def test_tools_are_plain_text_where_the_template_knows_none(tokenizer: Any) -> None:
    text = prompt(tokenizer, [{"role": "user", "content": "hi"}], tools=[SEARCH])
    assert text.startswith("<system>You may call functions")
    assert '"name": "search"' in text
    assert "<tool_call>" in text
    assert text.endswith("<user>hi<assistant>")


def test_tools_join_the_system_message_that_is_there(tokenizer: Any) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    text = prompt(tokenizer, messages, tools=[SEARCH])
    assert text.startswith("<system>Be brief.\n\nYou may call functions")
    assert text.count("<system>") == 1


def test_tools_go_to_a_template_that_knows_them(tokenizer: Any) -> None:
    tokenizer.chat_template = KNOWS_TOOLS
    text = prompt(tokenizer, [{"role": "user", "content": "hi"}], tools=[SEARCH])
    assert text.startswith("TOOLS=[{")
    assert "You may call functions" not in text


def test_no_tools_are_shown_where_the_client_wants_none_called(tokenizer: Any) -> None:
    plain = prompt(tokenizer, [{"role": "user", "content": "hi"}])
    assert prompt(tokenizer, [{"role": "user", "content": "hi"}], tools=[SEARCH], tool_choice="none") == plain


def test_earlier_tool_calls_and_their_answers_are_told_to_the_model(tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "found", "tool_call_id": "c1"},
    ]
    text = prompt(tokenizer, messages)
    assert '<assistant><tool_call>\n{"name": "search", "arguments": {"q": "Paris"}}\n</tool_call><tool>found' in text
    tokenizer.chat_template = KNOWS_TOOLS
    assert "CALL=Paris" in prompt(tokenizer, messages)


def test_the_templates_own_arguments_reach_it_and_ours_cannot_be_replaced(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ 'T' if thinking else 'F' }}"
    hello = [{"role": "user", "content": "hi"}]
    assert prompt(tokenizer, hello, chat_template_kwargs={"thinking": True}) == "T"
    with pytest.raises(ApiError, match="cannot be set"):
        prompt(tokenizer, hello, chat_template_kwargs={"tokenize": True})


def test_the_last_token_of_the_context_may_be_used() -> None:
    assert require_room([1] * 60, 4, 64, "prompt") == 4
    with pytest.raises(ApiError, match="64 tokens"):
        require_room([1] * 60, 5, 64, "prompt")
    with pytest.raises(ApiError, match="64 tokens"):
        require_room([1] * 64, None, 64, "prompt")


def test_a_tool_call_whose_arguments_are_no_json_goes_to_the_model_as_it_is(tokenizer: Any) -> None:
    broken = {**CALL, "function": {"name": "search", "arguments": "{oops"}}
    text = prompt(tokenizer, [{"role": "assistant", "content": "x", "tool_calls": [broken]}])
    assert '"arguments": "{oops"' in text


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
CALLS = st.fixed_dictionaries(
    {"function": VALUES | st.fixed_dictionaries({"name": VALUES, "arguments": VALUES | st.text(max_size=5)})},
    optional={"type": VALUES, "id": VALUES},
)
FIELDS = st.sampled_from(sorted(ChatBody.model_fields))
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
        optional={"content": st.text(max_size=5) | VALUES, "tool_calls": st.lists(CALLS, max_size=2), "name": VALUES},
    ),
    max_size=3,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES | VALUES, fields=st.dictionaries(FIELDS, VALUES, max_size=3))
def test_no_body_makes_the_server_fail(client: TestClient, messages: Any, fields: dict[str, Any]) -> None:
    body = {"model": "scripted", "max_tokens": 2, "messages": messages, **fields}
    headers = {"Content-Type": "application/json"}
    answer = client.post("/v1/chat/completions", content=json.dumps(body), headers=headers)
    assert answer.status_code in (200, 400, 404, 413), answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
