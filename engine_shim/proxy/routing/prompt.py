"""A request's prompt as bytes, in the order in which chat templates render it: equal prefixes give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b

LONG_PART = 4096
"""Bytes from which a part that is not text (an image as a data URL) is stood for by its digest."""


def prompt_bytes(body: Mapping[str, object]) -> bytes:
    """Of a parsed body of /v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings. Never raises:
    what is not understood takes part as its JSON, and a body without a prompt is empty."""
    pieces = [_text(body.get("model"))]
    if tools := body.get("tools"):
        pieces.append(_json(tools))
    if (instructions := body.get("instructions")) is not None:
        pieces.append(_text(instructions))
    messages = body.get("messages", body.get("input", body.get("prompt")))
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        # Token ids: as one piece, there may be a hundred thousand.
        are_tokens = bool(messages) and isinstance(messages[0], int)
        pieces += [_json(messages)] if are_tokens else [_message(each) for each in messages]
    elif messages is not None:
        pieces.append(_text(messages))
    else:
        return b""
    return b"\0".join(pieces)


def _message(message: object) -> bytes:
    if not isinstance(message, Mapping):
        return _text(message)
    parts = [_text(message.get("role")), _content(message.get("content"))]
    parts += [_json(message[name]) for name in ("tool_calls", "tool_call_id", "name") if message.get(name)]
    return b"\1".join(parts)


def _content(content: object) -> bytes:
    if isinstance(content, Sequence) and not isinstance(content, str):
        return b"\2".join(_part(each) for each in content)
    return _text(content)


def _part(part: object) -> bytes:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return _text(part["text"])
    whole = _json(part)
    return whole if len(whole) < LONG_PART else blake2b(whole, digest_size=32).digest()


def _text(value: object) -> bytes:
    if value is None:
        return b""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else _json(value)


def _json(value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError):
        return repr(type(value)).encode()
