"""Answers as servers write them: what is in a chunk or a body, and how to put something in.

Servers differ (research of provider dialects): reasoning under two names, tool calls whole or in parts, with or without
index and id. Only the fields named here are decoded; all others are passed over, and nothing is ever written anew.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

Number = int | float


class Delta(msgspec.Struct):
    """What a choice says in one chunk, or in one whole message."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class Choice(msgspec.Struct):
    """Of a chat (`delta`, `message`) or of a completion (`text`)."""

    index: Any = 0
    delta: Delta | None = None
    message: Delta | None = None
    text: Any = None
    logprobs: Any = None
    finish_reason: Any = None


class Chunk(msgspec.Struct):
    """Of a stream; and a whole answer, which has the same shape with messages in place of deltas."""

    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None
    id: Any = None
    object: Any = None
    created: Any = None
    model: Any = None


MOST_AGAIN = 1 << 20
MOST_TOKENS = 1 << 40
"""Of one answer: more, or less than none, is no count."""

_CHUNK = msgspec.json.Decoder(Chunk)


class NotReadError(Exception):
    """Not what an answer of this kind looks like: it passes without guards."""


def chunk_of(payload: bytes) -> Chunk:
    try:
        return _CHUNK.decode(payload)
    except (msgspec.DecodeError, RecursionError, ValueError):
        pass
    try:
        return msgspec.convert(as_python_writes(payload), Chunk)
    except (msgspec.ValidationError, RecursionError, ValueError):
        raise NotReadError from None


def body_of(data: bytes) -> Any:
    """Any JSON, in the form that Python takes too. Raises ValueError or RecursionError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError):
        return as_python_writes(data)


def as_python_writes(data: bytes) -> Any:
    """NaN, Infinity, numbers that no float holds and halves of surrogate pairs: no JSON, but what servers in Python
    answer, and where logits are broken the first that they do. Raises ValueError or RecursionError."""
    if len(data) > MOST_AGAIN:
        raise ValueError("too long to be read a second time")
    return _with_whole_characters(json.loads(data))


def _with_whole_characters(value: Any) -> Any:
    """What cannot be written as UTF-8 must not get into a label or a log."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_with_whole_characters(each) for each in value]
    if isinstance(value, dict):
        return {_with_whole_characters(key): _with_whole_characters(each) for key, each in value.items()}
    return value


class ResponseItem(msgspec.Struct):
    """Of /v1/responses: one of its output."""

    type: Any = None
    name: Any = None
    arguments: Any = None
    content: Any = None
    id: Any = None


class Response(msgspec.Struct):
    id: Any = None
    model: Any = None
    status: Any = None
    output: list[ResponseItem] | None = None
    usage: Any = None
    incomplete_details: Any = None


class ResponseEvent(msgspec.Struct):
    type: Any = None
    delta: Any = None
    output_index: Any = 0
    sequence_number: Any = None
    item: ResponseItem | None = None
    response: msgspec.Raw = msgspec.Raw(b"")


_RESPONSE_EVENT = msgspec.json.Decoder(ResponseEvent)
_RESPONSE = msgspec.json.Decoder(Response)


def response_event_of(payload: bytes) -> ResponseEvent:
    try:
        return _RESPONSE_EVENT.decode(payload)
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise NotReadError from None


def response_of(payload: bytes | msgspec.Raw) -> Response:
    try:
        return _RESPONSE.decode(payload)
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise NotReadError from None


def with_field(data: bytes, name: str, value: object) -> bytes:
    """A JSON object's bytes with one more field at its end; everything before stays as it was."""
    end = data.rindex(b"}")
    begin = data.index(b"{")
    separator = b"," if data[begin + 1 : end].strip() else b""
    field = msgspec.json.encode(name) + b":" + msgspec.json.encode(value)
    return data[:end] + separator + field + data[end:]


def as_event(body: object, name: str = "") -> bytes:
    first = f"event: {name}\n".encode() if name else b""
    return first + b"data: " + msgspec.json.encode(body) + b"\n\n"


def usage_of(usage: dict[str, object]) -> dict[str, int]:
    """prompt, output and cached tokens, as far as a server counts them; under both names that OpenAI has for each."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    named = {
        "prompt": usage.get("prompt_tokens", usage.get("input_tokens")),
        "output": usage.get("completion_tokens", usage.get("output_tokens")),
        "cached": details.get("cached_tokens") if isinstance(details, dict) else None,
    }
    return {name: value for name, value in named.items() if type(value) is int and 0 <= value < MOST_TOKENS}


DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"
