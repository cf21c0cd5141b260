"""The shapes that a line of recorded traffic can have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkengine.guards.text import Conversation, TextStart

SHAPES = "completion, messages, token_ids or series"
MOST_TOKEN = 1 << 31


class BadLine(Exception):
    """Not a record; the message says why, and holds nothing of the line's content."""


@dataclass(frozen=True, slots=True)
class Completion:
    id: str | int
    start: TextStart
    text: str
    logprobs: Any = None
    """OpenAI `logprobs` as they came, of the chat or of the older completions form."""


@dataclass(frozen=True, slots=True)
class Chat:
    id: str | int
    conversation: Conversation
    language: str | None = None


@dataclass(frozen=True, slots=True)
class TokenStream:
    id: str | int
    tokens: tuple[int, ...]
    prompt: tuple[int, ...] = ()
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    series: str
    value: float | str | bool
    """A number, or a category: a name (a finish reason, say), true or false."""
    t: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


Record = Completion | Chat | TokenStream | Measurement


def parse(line: bytes) -> Record:
    """The record of one line of JSON. Raises BadLine."""
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise BadLine("JSON nested too deep") from None
    except ValueError:
        raise BadLine("a number of too many digits") from None
    if not isinstance(found, dict):
        raise BadLine(f"not an object but {_kind(found)}")
    return _record(found)


def _record(found: dict[str, Any]) -> Record:
    if "series" in found:
        return _measurement(found)
    if "token_ids" in found:
        return _token_stream(found)
    if "messages" in found:
        return _chat(found)
    if "completion" in found:
        return _completion(found)
    raise BadLine(f"none of {SHAPES} is in it")


def _completion(found: dict[str, Any]) -> Completion:
    identity = _identity(found)
    start = TextStart(
        str(identity), _text(found, "prompt", ""), _optional_text(found, "language"), _objects(found, "tools")
    )
    return Completion(identity, start, _text(found, "completion"), found.get("logprobs"))


def _chat(found: dict[str, Any]) -> Chat:
    identity = _identity(found)
    messages = _objects(found, "messages")
    for number, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise BadLine(f"message {number} has no role")
    return Chat(
        identity,
        Conversation(str(identity), messages, _objects(found, "tools")),
        _optional_text(found, "language"),
    )


def _token_stream(found: dict[str, Any]) -> TokenStream:
    return TokenStream(
        _identity(found),
        _token_ids(found, "token_ids"),
        _token_ids(found, "prompt_token_ids") if found.get("prompt_token_ids") is not None else (),
        _optional_text(found, "language"),
    )


def _measurement(found: dict[str, Any]) -> Measurement:
    series, value = _text(found, "series"), found.get("value")
    if not isinstance(value, str | bool):
        value = _number(value, "value")
    t = found.get("t")
    return Measurement(series, value, None if t is None else _number(t, "t"))


def _identity(found: dict[str, Any]) -> str | int:
    identity = found.get("id")
    if isinstance(identity, str) or (isinstance(identity, int) and not isinstance(identity, bool)):
        return identity
    raise BadLine("no id" if identity is None else f"id is {_kind(identity)}, not a text or a whole number")


def _text(found: dict[str, Any], name: str, default: str | None = None) -> str:
    value = found.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise BadLine(f"{name} is {_kind(value)}, not a text")
    return value


def _optional_text(found: dict[str, Any], name: str) -> str | None:
    return _text(found, name) if found.get(name) is not None else None


def _objects(found: dict[str, Any], name: str) -> tuple[Mapping[str, object], ...]:
    value = found.get(name)
    if value is None and name != "messages":
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadLine(f"{name} is no list of objects")
    return tuple(value)


def _token_ids(found: dict[str, Any], name: str) -> tuple[int, ...]:
    value = found[name]
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise BadLine(f"{name} is no list of whole numbers")
    if not all(-MOST_TOKEN <= each < MOST_TOKEN for each in value):
        raise BadLine(f"{name} holds a number that no token id can be")
    return tuple(value)


def _number(value: object, name: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadLine(f"{name} is no finite number")
    return number


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
