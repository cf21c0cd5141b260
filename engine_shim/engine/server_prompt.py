"""From a request to prompt tokens, with the model's own chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from checkengine.engine_shim.engine.server_errors import ApiError
from checkengine.engine_shim.engine.server_requests import ChatBody, ChatMessage, Tool, ToolCall

TOOL_PREAMBLE = """You may call functions. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments as JSON inside tags, and nothing else:
<tool_call>
{{"name": "function name", "arguments": {{}}}}
</tool_call>"""
"""The tags are those that Hermes, Qwen and SmolLM2 models were trained with."""


def chat_tokens(tokenizer: Any, body: ChatBody) -> list[int]:
    """Raises ApiError where the model has no chat template or the template refuses the messages."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise ApiError(
            "this model has no chat template; use /v1/completions", param="messages", code="no_chat_template"
        )
    tools = body.tools if body.tools and body.tool_choice != "none" else []
    knows_tools = "tools" in str(template)
    messages = [_as_template_message(message, knows_tools) for message in body.messages]
    if tools and not knows_tools:
        messages = _with_tools_as_text(messages, tools)
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tools=[tool.model_dump(exclude_none=True) for tool in tools] if knows_tools and tools else None,
            tokenize=False,
            add_generation_prompt=True,
            **_extra_arguments(body),
        )
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Templates are programs of the model's authors and trip over odd messages in every way.
        raise ApiError(f"messages: the model's chat template refuses them: {error}", param="messages") from error
    return encode(tokenizer, text, special=False, param="messages")


def _extra_arguments(body: ChatBody) -> dict[str, Any]:
    extra = body.chat_template_kwargs or {}
    taken = {"conversation", "chat_template", "tools", "tokenize", "add_generation_prompt", "documents"} & extra.keys()
    if taken:
        name = f"chat_template_kwargs.{min(taken)}"
        raise ApiError(f"{name}: cannot be set by a request", param=name, code="invalid_value")
    return extra


def completion_tokens(tokenizer: Any, prompt: str | list[int], vocabulary: int) -> list[int]:
    if isinstance(prompt, str):
        return encode(tokenizer, prompt, special=True, param="prompt")
    if not prompt:
        raise ApiError("prompt: the prompt is empty", param="prompt", code="invalid_value")
    outside = [token for token in prompt if not 0 <= token < vocabulary]
    if outside:
        raise ApiError(f"prompt: token {outside[0]} is outside the vocabulary of {vocabulary}", param="prompt")
    return prompt


def encode(tokenizer: Any, text: str, *, special: bool, param: str) -> list[int]:
    try:
        tokens: list[int] = tokenizer.encode(text, add_special_tokens=special)
    except (UnicodeEncodeError, TypeError) as error:
        # a lone surrogate is legal in JSON, but no text
        raise ApiError(f"{param}: the text is not valid Unicode", param=param, code="invalid_value") from error
    if not tokens:
        raise ApiError(f"{param}: the prompt is empty", param=param, code="invalid_value")
    return tokens


def require_room(tokens: Sequence[int], asked: int | None, context_length: int, param: str) -> int:
    """Tokens that the context leaves for output; raises context_length_exceeded like OpenAI."""
    room = context_length - len(tokens)
    if room < (asked or 1):
        raise ApiError(
            f"This model's maximum context length is {context_length} tokens. However, you requested "
            f"{len(tokens) + (asked or 1)} tokens ({len(tokens)} in the {param}, {asked or 1} in the completion).",
            param=param,
            code="context_length_exceeded",
        )
    return room


def _as_template_message(message: ChatMessage, knows_tools: bool) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": message.text}
    if message.tool_calls and knows_tools:
        plain["tool_calls"] = [_with_parsed_arguments(call) for call in message.tool_calls]
    elif message.tool_calls:
        plain["content"] += "".join(f"\n<tool_call>\n{_call_text(call)}\n</tool_call>" for call in message.tool_calls)
        plain["content"] = plain["content"].strip()
    if message.role == "tool" and knows_tools and message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    if message.name:
        plain["name"] = message.name
    return plain


def _with_parsed_arguments(call: ToolCall) -> dict[str, Any]:
    """Chat templates expect an object where OpenAI sends a string of JSON."""
    function = {"name": call.function.name, "arguments": _parsed(call.function.arguments)}
    return {"id": call.id, "type": call.type, "function": function}


def _call_text(call: ToolCall) -> str:
    return json.dumps({"name": call.function.name, "arguments": _parsed(call.function.arguments)})


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _with_tools_as_text(messages: list[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    lines = [json.dumps(tool.model_dump(exclude_none=True), ensure_ascii=False) for tool in tools]
    preamble = TOOL_PREAMBLE.format(tools="\n".join(lines))
    if messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{preamble}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": preamble}, *messages]
