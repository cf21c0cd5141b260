"""A stream that broke off, taken up by another upstream."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from checkengine.engine_shim.proxy.routing.continuation import CannotContinue, Seam, continued_body

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Count to ten."}]


def test_a_chat_goes_on_from_the_text_so_far_with_what_is_left_of_its_tokens() -> None:
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 20, "min_tokens": 8, "stream": True, "temperature": 0.7}
    before = copy.deepcopy(body)
    assert continued_body(CHAT, body, "one, two", 3) == {
        **body,
        "messages": [*MESSAGES, {"role": "assistant", "content": "one, two"}],
        "max_tokens": 17,
        "min_tokens": 5,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert body == before


def test_mistrals_dialect_marks_the_message_itself() -> None:
    found = continued_body(CHAT, {"messages": MESSAGES}, "one", 1, "prefix")
    assert found["messages"][-1] == {"role": "assistant", "content": "one", "prefix": True}
    assert "continue_final_message" not in found


def test_a_chat_that_was_a_continuation_itself_is_continued_in_the_same_message() -> None:
    body = {"messages": [*MESSAGES, {"role": "assistant", "content": "one, "}], "continue_final_message": True}
    assert continued_body(CHAT, body, "two", 1)["messages"][1:] == [{"role": "assistant", "content": "one, two"}]


def test_nothing_sent_yet_is_the_same_request() -> None:
    body = {"messages": MESSAGES, "max_completion_tokens": 9}
    assert continued_body(CHAT, body, "", 0) == body


def test_a_completion_goes_on_from_its_prompt_and_the_text() -> None:
    for prompt in ("Once", ["Once"]):
        found = continued_body("/v1/completions", {"prompt": prompt, "max_tokens": 5}, " upon", 1)
        assert found == {"prompt": "Once upon", "max_tokens": 4}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (CHAT, {"messages": MESSAGES, "n": 2}, "several choices"),
        (CHAT, {"messages": MESSAGES, "response_format": {"type": "json_object"}}, "structured output"),
        (CHAT, {"messages": MESSAGES, "guided_regex": "a+"}, "guided output"),
        (CHAT, {"messages": MESSAGES, "tool_choice": "required"}, "tool call"),
        (CHAT, {"messages": []}, "no messages"),
        (CHAT, {"messages": MESSAGES, "max_tokens": 3}, "the stream is complete"),
        ("/v1/completions", {"prompt": [1, 2]}, "token ids"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "several prompts"),
        ("/v1/completions", {"prompt": "a", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": "a", "suffix": "z"}, "suffix"),
        ("/v1/responses", {"input": "a"}, "only chat and completions"),
    ],
)
def test_what_cannot_be_continued_is_refused_with_a_reason(path: str, body: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotContinue, match=words):
        continued_body(path, body, "text", 3)


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "second", "created": 2, "model": "m-2", "choices": [choice], **more}


def test_the_second_stream_looks_like_the_rest_of_the_first() -> None:
    seam = Seam({"id": "first", "created": 1, "model": "m-1", "choices": []}, 3)
    assert seam.chunk(chunk({"role": "assistant", "content": ""})) is None
    found = seam.chunk(chunk({"role": "assistant", "content": " three"}))
    assert found == {
        "id": "first",
        "created": 1,
        "model": "m-1",
        "choices": [{"index": 0, "delta": {"content": " three"}, "finish_reason": None}],
    }
    last = seam.chunk(chunk({}, "stop"))
    assert last is not None
    assert last["choices"][0]["finish_reason"] == "stop"


def test_usage_of_both_streams_is_one_usage() -> None:
    seam = Seam({"id": "first"}, 3)
    usage = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
    found = seam.chunk({"id": "second", "choices": [], "usage": usage})
    assert found == {"id": "first", "choices": [], "usage": {**usage, "prompt_tokens": 7, "completion_tokens": 7}}


def test_a_completions_chunk_and_a_tool_call_pass_the_seam_unchanged_but_for_their_name() -> None:
    seam = Seam({"id": "first"}, 3)
    assert seam.chunk({"id": "second", "choices": [{"text": "x"}]}) == {"id": "first", "choices": [{"text": "x"}]}
    call = {"role": "assistant", "content": None, "tool_calls": [{"index": 0}]}
    found = seam.chunk(chunk(call))
    assert found is not None
    assert found["choices"][0]["delta"]["tool_calls"] == [{"index": 0}]
