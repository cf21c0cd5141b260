"""Tools, calls and results out of chat messages, whatever dialect they are in. Pure, and never raises.

Read are OpenAI's `tool_calls` (arguments as text or as an object), its legacy `function_call` with role `function`,
content blocks of the kinds `tool_use`, `tool_result`, `text`, and calls that stand as tags in an assistant's text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from checkengine.detectors.tool_calls.canonical import canonical
from checkengine.detectors.tool_calls.recogniser import ToolCallRecogniser

LONGEST_TEXT = 262_144
"""Characters of one message or result that are read; of a longer one the first and last half."""
USERS = ("user", "human")
INSTRUCTIONS = ("system", "developer")
CALLERS = ("assistant", "model", "ai")
ANSWERS = ("tool", "function", "tool_result", "ipython", "observation")


@dataclass(slots=True)
class ToolUse:
    """One call of a tool and what came back."""

    name: str
    """Empty where the call names none."""
    arguments: Any
    """Parsed; the text itself where it is not JSON; None where there are none."""
    message: int
    """Index of the message that holds the call."""
    id: str = ""
    form: Literal["json", "object", "broken", "text"] = "json"
    """How the arguments came: JSON text, an object, text that is not JSON, or a family's own way of writing."""
    result: str | None = field(default=None, repr=False)
    """None where no result was recorded."""
    result_message: int = -1
    failed: bool = False
    """The result says so itself (`is_error`)."""


@dataclass(frozen=True, slots=True)
class UserTurn:
    message: int
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Said:
    """An assistant's message with text."""

    message: int
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Round:
    """The calls of one assistant message, made before any of their results was known."""

    message: int
    uses: tuple[ToolUse, ...]


def text_of(content: object) -> str:
    """A message's text: a string, a list of content blocks, one block, or whatever it is as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _cut(content)
    if isinstance(content, Mapping):
        return _block_text(content)
    if isinstance(content, Sequence) and not isinstance(content, (bytes, bytearray)):
        if all(isinstance(block, (str, Mapping)) for block in content):
            texts = (block if isinstance(block, str) else _block_text(block) for block in content)
            return _cut("\n".join(text for text in texts if text))
        return _cut(canonical(content))
    return _cut(str(content))


def prompt_of(messages: object) -> str:
    """The last user turn, with the system prompt before it where there is one."""
    system, user = "", ""
    for message in _messages(messages):
        role = _role(message)
        if role in INSTRUCTIONS:
            system = text_of(message.get("content"))
        elif role in USERS:
            user = _own_text(message) or user
    return "\n".join(part for part in (system, user) if part)


def tools_of(request: object) -> tuple[Mapping[str, object], ...]:
    """OpenAI tool definitions of a request, from `tools` (OpenAI's or Anthropic's shape) or legacy `functions`."""
    if not isinstance(request, Mapping):
        return ()
    listed = _sequence(request.get("tools")) or _sequence(request.get("functions"))
    return tuple(tool for item in listed if (tool := _tool(item)) is not None)


def turns_of(messages: object) -> list[Round | UserTurn | Said]:
    """The conversation in order, results put to their calls."""
    turns: list[Round | UserTurn | Said] = []
    waiting: list[ToolUse] = []
    for index, message in enumerate(_sequence(messages)):
        if not isinstance(message, Mapping):
            continue
        role = _role(message)
        for identifier, name, text, failed in _results(message, role):
            _settle(waiting, index, identifier, name, text, failed)
        if role in CALLERS:
            uses = tuple(_uses(message, index))
            if text := _own_text(message):
                turns.append(Said(index, text))
            if uses:
                waiting = [use for use in waiting[-64:] if use.result is None] + list(uses)
                turns.append(Round(index, uses))
        elif role in USERS and not _holds_results(message):
            turns.append(UserTurn(index, _own_text(message)))
    return turns


def _messages(messages: object) -> Iterator[Mapping[str, Any]]:
    for message in _sequence(messages):
        if isinstance(message, Mapping):
            yield message


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role", message.get("from"))
    return role.lower() if isinstance(role, str) else ""


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return text[: LONGEST_TEXT // 2] + text[-LONGEST_TEXT // 2 :]


def _block_text(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind in ("tool_use", "tool_result", "tool_call", "thinking", "redacted_thinking"):
        return ""
    text = block.get("text", block.get("content"))
    if isinstance(text, str):
        return _cut(text)
    return "" if kind in ("image", "image_url", "input_audio", "file") else _cut(canonical(block))


def _own_text(message: Mapping[str, Any]) -> str:
    return text_of(message.get("content"))


def _blocks(message: Mapping[str, Any], *kinds: str) -> list[Mapping[str, Any]]:
    blocks = _sequence(message.get("content"))
    return [block for block in blocks if isinstance(block, Mapping) and block.get("type") in kinds]


def _holds_results(message: Mapping[str, Any]) -> bool:
    return bool(_blocks(message, "tool_result")) or "<tool_response>" in _own_text(message)[:64]


def _uses(message: Mapping[str, Any], index: int) -> Iterator[ToolUse]:
    found = False
    for call in _sequence(message.get("tool_calls")):
        found = True
        yield _use(call, index)
    if isinstance(message.get("function_call"), Mapping):
        found = True
        yield _use({"function": message["function_call"]}, index)
    for block in _blocks(message, "tool_use", "tool_call"):
        found = True
        yield _use(block, index)
    if not found:
        yield from _tagged(_own_text(message), index)


def _use(call: object, index: int) -> ToolUse:
    if not isinstance(call, Mapping):
        return ToolUse("", None, index, form="broken")
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        function = {"name": function} if isinstance(function, str) else {}
    name = function.get("name")
    raw = next((function[key] for key in ("arguments", "input", "parameters", "args") if key in function), None)
    arguments, form = _arguments(raw)
    identifier = call.get("id", call.get("tool_call_id"))
    return ToolUse(name if isinstance(name, str) else "", arguments, index, _text(identifier), form)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _arguments(raw: object) -> tuple[Any, Literal["json", "object", "broken"]]:
    if not isinstance(raw, str):
        return raw, "object"
    if not raw.strip():
        return {}, "json"
    try:
        return json.loads(raw), "json"
    except (ValueError, RecursionError):
        return _cut(raw), "broken"


def _tagged(text: str, index: int) -> Iterator[ToolUse]:
    if "<" not in text and "[TOOL_CALLS]" not in text:
        return
    recogniser = ToolCallRecogniser(bare_json=False)
    for call in recogniser.push(text.encode("utf-8", errors="surrogatepass")):
        if call.well_formed:
            yield ToolUse(call.name or "", call.arguments, index, form="json" if call.typed else "text")


def _results(message: Mapping[str, Any], role: str) -> Iterator[tuple[str, str, str, bool]]:
    """Call id, tool name, text, whether it failed."""
    if role in ANSWERS:
        identifier, name = _text(message.get("tool_call_id", message.get("id"))), _text(message.get("name"))
        yield identifier, name, _result_text(message.get("content")), message.get("is_error") is True
    for block in _blocks(message, "tool_result"):
        identifier = _text(block.get("tool_use_id", block.get("tool_call_id")))
        yield identifier, "", _result_text(block.get("content")), block.get("is_error") is True
    if role in USERS and not _blocks(message, "tool_result") and "<tool_response>" in (text := _own_text(message))[:64]:
        for part in text.split("<tool_response>")[1:]:
            yield "", "", part.partition("</tool_response>")[0].strip(), False


def _result_text(content: object) -> str:
    """Blocks that are not text (images) count by what they hold."""
    if isinstance(content, (list, tuple)):
        texts = [block.get("text") if isinstance(block, Mapping) else block for block in content]
        if all(isinstance(text, str) for text in texts):
            return _cut("\n".join(text for text in texts if isinstance(text, str)))
        return _cut(canonical(content))
    if isinstance(content, Mapping):
        return _cut(canonical(content))
    return text_of(content)


def _settle(waiting: list[ToolUse], index: int, identifier: str, name: str, text: str, failed: bool) -> None:
    """To the latest open call of this id, else the first open call of this name, else the first open one."""
    open_uses = [use for use in waiting if use.result is None]
    use = next((use for use in reversed(open_uses) if identifier and use.id == identifier), None)
    if use is None:
        anonymous: Iterable[ToolUse] = [use for use in open_uses if not identifier or not use.id]
        use = next((use for use in anonymous if not name or use.name == name), None)
    if use is not None:
        use.result, use.result_message, use.failed = text, index, failed


def _tool(item: object) -> Mapping[str, object] | None:
    if not isinstance(item, Mapping):
        return None
    function = item.get("function", item)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return None
    parameters = function.get("parameters", function.get("input_schema"))
    kept: dict[str, object] = {"name": function["name"]}
    if isinstance(parameters, Mapping):
        kept["parameters"] = parameters
    return {"type": "function", "function": kept}
