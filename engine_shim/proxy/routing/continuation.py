"""The upstream died in the middle of a stream: what another one is asked, so that it goes on where the text stopped.

The text so far becomes the end of the prompt and is prefilled again. Limits: sampling starts anew there (no seed
repeats it), tokens at the seam may be cut otherwise, and what a grammar or a half-written tool call constrains cannot
be continued over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from checkengine.guards.errors import UserError

Dialect = Literal["continue_final_message", "prefix"]
"""How a server is told that the last message of a chat is to be continued: as vLLM and SGLang read it, or as Mistral
and DeepSeek do."""

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class CannotContinue(UserError):
    """Why this request cannot be taken up by another server; the client gets an error instead."""


def continued_body(
    path: str, body: Mapping[str, Any], text: str, tokens: int, dialect: Dialect = "continue_final_message"
) -> dict[str, Any]:
    """The body for another upstream. `text` and `tokens`: what the client has got so far, of the only choice.

    The body that is given is not changed. Raises CannotContinue.
    """
    _refuse(body)
    if path.endswith(CHAT):
        continued = _chat(body, text, dialect)
    elif path.endswith(COMPLETIONS):
        continued = _completion(body, text)
    else:
        raise CannotContinue(f"{path} cannot be continued; only chat and completions can")
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(limit := body.get(name), int):
            if limit <= tokens:
                raise CannotContinue(f"all of its {limit} tokens were sent: the stream is complete")
            continued[name] = limit - tokens
    if isinstance(least := body.get("min_tokens"), int):
        continued["min_tokens"] = max(0, least - tokens)
    return continued


def _refuse(body: Mapping[str, Any]) -> None:
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        raise CannotContinue("a request for several choices cannot be continued")
    form = body.get("response_format")
    if isinstance(form, Mapping) and form.get("type") not in (None, "text"):
        raise CannotContinue("structured output cannot be continued: its grammar would start anew")
    guided = [name for name in body if name.startswith(("guided_", "structured_outputs")) and body[name] is not None]
    if guided or body.get("grammar") is not None or body.get("regex") is not None:
        raise CannotContinue("guided output cannot be continued: its grammar would start anew")
    if body.get("echo"):
        raise CannotContinue("a request with echo cannot be continued")
    if body.get("tool_choice") not in (None, "none", "auto"):
        raise CannotContinue("a forced tool call cannot be continued")


def _chat(body: Mapping[str, Any], text: str, dialect: Dialect) -> dict[str, Any]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise CannotContinue("the request has no messages")
    last = messages[-1]
    was_begun = isinstance(last, Mapping) and last.get("role") == "assistant" and isinstance(last.get("content"), str)
    begun = was_begun and (body.get("continue_final_message") is True or last.get("prefix") is True)
    if not text and not begun:
        return dict(body)
    answer: dict[str, Any] = {"role": "assistant", "content": (last["content"] if begun else "") + text}
    continued = {**body, "messages": [*(messages[:-1] if begun else messages), answer]}
    if dialect == "prefix":
        answer["prefix"] = True
    else:
        continued |= {"continue_final_message": True, "add_generation_prompt": False}
    return continued


def _completion(body: Mapping[str, Any], text: str) -> dict[str, Any]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise CannotContinue("a prompt of token ids, or several prompts, cannot be continued from text")
    if body.get("suffix"):
        raise CannotContinue("a request with a suffix cannot be continued")
    return {**body, "prompt": prompt + text}


class Seam:
    """Makes the second stream look like the rest of the first: its id, time and model, no second role, one usage.

    `first`: any chunk of the first stream. `text_tokens`: tokens that were sent before the break; they stand in the
    second stream's prompt count, and belong to the completion.
    """

    def __init__(self, first: Mapping[str, Any], text_tokens: int) -> None:
        self._kept = {name: first[name] for name in ("id", "created", "model", "system_fingerprint") if name in first}
        self._tokens = text_tokens

    def chunk(self, chunk: Mapping[str, Any]) -> dict[str, Any] | None:
        """The chunk to send instead; None for one that would say nothing new."""
        found = {**chunk, **{name: value for name, value in self._kept.items() if name in chunk}}
        usage = chunk.get("usage")
        if isinstance(usage, Mapping):
            found["usage"] = self._usage(usage)
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices:
            found["choices"] = [_without_role(each) for each in choices]
            is_empty = all(each.get("delta") == {} and each.get("finish_reason") is None for each in found["choices"])
            if is_empty and usage is None:
                return None
        return found

    def _usage(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if not isinstance(prompt, int) or not isinstance(completion, int):
            return dict(usage)
        moved = min(self._tokens, prompt)
        return {**usage, "prompt_tokens": prompt - moved, "completion_tokens": completion + moved}


def _without_role(choice: Any) -> dict[str, Any]:
    if not isinstance(choice, Mapping) or not isinstance(choice.get("delta"), Mapping):
        return dict(choice) if isinstance(choice, Mapping) else {}
    delta = {name: value for name, value in choice["delta"].items() if name != "role"}
    is_opening = "role" in choice["delta"] and not delta.get("content") and not delta.get("tool_calls")
    return {**choice, "delta": {} if is_opening else delta}
