"""One tool call, reduced to what tells it from another."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`start` and `end` are indices of the tokens that hold its first and last byte."""

    name: str | None
    digest: bytes
    """16 bytes over name and canonical arguments; equal for calls that differ in white space or key order only."""
    well_formed: bool
    """The payload is JSON with a name."""
    start: int
    end: int


_FUNCTION_TAG = re.compile(r"<function=([^>\s]+)>")


def call_from_payload(payload: bytes, start: int, end: int) -> ToolCall:
    """From {"name": …, "arguments" | "parameters": …}; anything else is compared by its text, white space folded."""
    text = payload.decode("utf-8", errors="replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _call_from_text(text, start, end)
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return _call_from_text(text, start, end)
    return _call(value["name"], _arguments(value), start, end)


def is_call(payload: bytes) -> bool:
    """Whether a JSON object that stands without a tag is a call: it has a name and arguments."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return False
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    return isinstance(value, dict) and isinstance(value.get("name"), str) and _arguments(value) is not None


def named_call(name: bytes, arguments: bytes, start: int, end: int) -> ToolCall:
    """From a name and a JSON text beside it (Mistral's NAME[ARGS]{…})."""
    text = name.decode("utf-8", errors="replace").strip()
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return _call_from_text(text + " " + arguments.decode("utf-8", errors="replace"), start, end)
    return _call(text, value, start, end)


def _arguments(value: Mapping[str, Any]) -> Any:
    found = value.get("arguments", value.get("parameters"))
    if isinstance(found, str):
        # OpenAI's own form: arguments are JSON inside a string.
        try:
            return json.loads(found)
        except (ValueError, RecursionError):
            return found
    return found


def _call(name: str, arguments: Any, start: int, end: int) -> ToolCall:
    canonical = json.dumps([name, arguments], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return ToolCall(name, _digest(canonical), True, start, end)


def _call_from_text(text: str, start: int, end: int) -> ToolCall:
    tag = _FUNCTION_TAG.search(text)
    return ToolCall(tag.group(1) if tag else None, _digest(" ".join(text.split())), False, start, end)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=16).digest()
