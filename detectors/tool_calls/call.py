"""One tool call, reduced to what tells it from another."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from checkengine.detectors.tool_calls.canonical import canonical, digest
from checkengine.detectors.tool_calls.delimiters import CALL_HEAD
from checkengine.detectors.tool_calls.payload import Parsed, call_of, has_arguments, parse_calls


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`start` and `end` are indices of the tokens that hold its first and last byte."""

    name: str | None
    digest: bytes
    """16 bytes over name and canonical arguments; equal for calls that differ in white space or key order only."""
    well_formed: bool
    """The payload is a call in its family's way of writing: JSON with a name, <function=…>, NAME(…)…"""
    start: int
    end: int
    arguments: Any = field(default=None, repr=False, compare=False)
    """As parsed; None where it is not well formed."""
    typed: bool = True
    """False where the family writes every argument as text."""
    looks_like_one: bool = True
    """Its payload begins as a call's does: else the tags may stand in prose."""
    complete: bool = True
    """False where the payload was too long to be kept: then nothing is known of its form."""


_FUNCTION_TAG = re.compile(r"<function=([^>\s]+)>")


def calls_from_payload(payload: bytes, start: int, end: int) -> list[ToolCall]:
    """What no family writes is one call, compared by its text, white space folded."""
    text = payload.decode("utf-8", errors="replace")
    parsed = parse_calls(text)
    if parsed is None:
        return [_call_from_text(text, start, end)]
    return [_call(call, start, end) for call in parsed]


def call_from_part(payload: bytes, start: int, end: int) -> ToolCall:
    """From the first bytes of a call that was too long to be kept."""
    found = _call_from_text(payload.decode("utf-8", errors="replace"), start, end)
    return replace(found, complete=False)


def call_from_payload(payload: bytes, start: int, end: int) -> ToolCall:
    """From one JSON value."""
    return calls_from_payload(payload, start, end)[0]


def is_call(payload: bytes) -> bool:
    """Whether a JSON object that stands without a tag is a call: it has a name and arguments."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return False
    return call_of(value) is not None and has_arguments(value)


def named_call(name: bytes, arguments: bytes, start: int, end: int) -> ToolCall:
    """From a name and a JSON text beside it (Mistral's NAME[ARGS]{…})."""
    text = name.decode("utf-8", errors="replace").strip()
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return _call_from_text(text + " " + arguments.decode("utf-8", errors="replace"), start, end)
    return _call(Parsed(text, value), start, end)


def _call(parsed: Parsed, start: int, end: int) -> ToolCall:
    key = canonical([parsed.name, parsed.arguments])
    return ToolCall(parsed.name, digest(key), True, start, end, parsed.arguments, parsed.typed)


def _call_from_text(text: str, start: int, end: int) -> ToolCall:
    tag = _FUNCTION_TAG.search(text)
    begins = not text.strip() or CALL_HEAD.match(text[:512].encode()) is not None
    key = digest(" ".join(text.split()))
    return ToolCall(tag.group(1) if tag else None, key, False, start, end, looks_like_one=begins)
