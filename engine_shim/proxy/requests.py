"""What guards and routing need of a request's body; the body itself goes upstream as it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import msgspec

from checkengine.guards.prompts import prompt_of, text_of

Body = Mapping[str, Any]
NOTHING: Body = MappingProxyType({})
SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty", "seed")
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
MOST_CHOICES = 128
MOST_STOPS = 16
MOST_TOOLS = 1024
"""With more nothing is known of them: eight times as many as OpenAI takes."""
MOST_CONTAINERS, MOST_COMMAS = 500_000, 4_000_000
"""Of a body that is read: a million empty lists take seconds, in which no token passes."""
LARGE = 1 << 20


class Operation(StrEnum):
    """As OpenTelemetry names them."""

    CHAT = "chat"
    COMPLETION = "text_completion"
    RESPONSE = "response"
    EMBEDDINGS = "embeddings"
    OTHER = "other"

    @property
    def generates(self) -> bool:
        return self in (Operation.CHAT, Operation.COMPLETION, Operation.RESPONSE)

    @property
    def is_read(self) -> bool:
        """Guards read its answers."""
        return self is not Operation.OTHER


OPERATIONS = {
    "/v1/chat/completions": Operation.CHAT,
    "/v1/completions": Operation.COMPLETION,
    "/v1/responses": Operation.RESPONSE,
    "/v1/embeddings": Operation.EMBEDDINGS,
}
"""Of POST requests."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """Taken from a body without checking it: the upstream does that. Whatever has a wrong type counts as not given."""

    operation: Operation = Operation.OTHER
    body: Body = field(default_factory=lambda: NOTHING)
    model: str = ""
    stream: bool = False
    wants_usage: bool = False
    choices: int = 1
    tools: tuple[Mapping[str, object], ...] = ()
    messages: tuple[Mapping[str, object], ...] = ()
    """Of a chat."""
    stops: tuple[str, ...] = ()
    stop_is_kept: bool = False
    """The text may end in the stop string (vLLM's include_stop_str_in_output)."""
    limit: int | None = None
    """Output tokens at most, where the request says so."""
    user: str = ""
    language: str | None = None

    @property
    def prompt(self) -> str:
        """The last user turn, with the system prompt before it."""
        if self.operation is Operation.CHAT:
            return prompt_of(self.messages)
        if self.operation is Operation.RESPONSE:
            return _prompt_of_input(self.body)
        prompt = self.body.get("prompt")
        return prompt if isinstance(prompt, str) else _first_text(prompt)

    @property
    def turns(self) -> tuple[Mapping[str, object], ...]:
        """As chat messages; calls and their outputs of /v1/responses are put into that form."""
        if self.operation is not Operation.RESPONSE:
            return self.messages
        return tuple(_as_message(item) for item in _objects(self.body.get("input")))

    @property
    def sampling(self) -> dict[str, object]:
        return {name: self.body[name] for name in SAMPLING if isinstance(self.body.get(name), int | float)}


def facts_of(operation: Operation, data: bytes) -> RequestFacts:
    """Never raises: what is no JSON object has no facts, and goes upstream all the same."""
    if len(data) > LARGE and _is_too_much(data):
        return RequestFacts(operation)
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return RequestFacts(operation)
    if not isinstance(body, dict):
        return RequestFacts(operation)
    options = body.get("stream_options")
    return RequestFacts(
        operation,
        body,
        _text(body.get("model")),
        body.get("stream") is True,
        isinstance(options, dict) and options.get("include_usage") is True,
        _count(body.get("n")),
        _tools(body.get("tools")),
        _objects(body.get("messages")),
        _stops(body.get("stop")),
        body.get("include_stop_str_in_output") is True,
        next((body[name] for name in LIMITS if type(body.get(name)) is int), None),
        _text(body.get("user")),
        _text(body.get("language")) or None,
    )


def _is_too_much(data: bytes) -> bool:
    return data.count(b"[") + data.count(b"{") > MOST_CONTAINERS or data.count(b",") > MOST_COMMAS


def _tools(value: object) -> tuple[Mapping[str, object], ...]:
    tools = _objects(value)
    return tools if len(tools) <= MOST_TOOLS else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return min(value, MOST_CHOICES) if type(value) is int and value > 0 else 1


def _objects(value: object) -> tuple[Mapping[str, object], ...]:
    return tuple(each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()


def _stops(value: object) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(each for each in found if isinstance(each, str) and each)[:MOST_STOPS]


def _first_text(prompts: object) -> str:
    """Of several prompts the first stands for all."""
    if isinstance(prompts, Sequence) and not isinstance(prompts, str) and prompts and isinstance(prompts[0], str):
        return prompts[0]
    return ""


def _prompt_of_input(body: Body) -> str:
    given = body.get("input")
    asked = given if isinstance(given, str) else prompt_of(_objects(given))
    instructions = text_of(body.get("instructions"))
    return f"{instructions}\n\n{asked}" if instructions else asked


def _as_message(item: Mapping[str, object]) -> Mapping[str, object]:
    kind = item.get("type")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    return item
