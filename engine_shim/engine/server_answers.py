"""Answers in OpenAI's shape: whole ones and chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from checkengine.engine_shim.engine.observer import RequestEnd
from checkengine.engine_shim.engine.phases import PhaseTimes, merged
from checkengine.engine_shim.engine.request import GenerationRequest, IncidentNote, Output

Kind = Literal["chat", "completion"]


@dataclass(slots=True)
class Choice:
    """One answer as it grows."""

    index: int
    prompt_tokens: int
    text: str = ""
    output_tokens: int = 0
    cached_tokens: int = 0
    finish: str | None = None
    note: IncidentNote | None = None
    phases: PhaseTimes | None = None


@dataclass(slots=True)
class Answer:
    """The state of one HTTP request: it takes outputs and tells bodies."""

    kind: Kind
    identity: str
    model: str
    guard_finish_reason: str
    requests: Sequence[GenerationRequest]
    prompts: int
    """Different prompts among the requests; choices of one prompt share its tokens."""
    created: int = field(default_factory=lambda: int(time.time()))
    choices: dict[str, Choice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choices = {
            request.name: Choice(index, len(request.prompt_tokens)) for index, request in enumerate(self.requests)
        }

    def take(self, output: Output) -> Choice:
        choice = self.choices[output.name]
        choice.text += output.text
        choice.output_tokens += len(output.tokens)
        choice.cached_tokens = output.cached_tokens
        if output.finish is not None:
            choice.finish = self._finish_reason(output)
            choice.note, choice.phases = output.note, output.phases
        return choice

    def _finish_reason(self, output: Output) -> str:
        return self.guard_finish_reason if output.note is not None else output.finish or "stop"

    def usage(self) -> dict[str, Any]:
        first = list(self.choices.values())[:: max(1, len(self.choices) // self.prompts)]
        prompt = sum(choice.prompt_tokens for choice in first)
        output = sum(choice.output_tokens for choice in self.choices.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in first)},
        }

    def body(self) -> dict[str, Any]:
        """The whole answer at once."""
        choices = [self._whole_choice(choice) for choice in self.choices.values()]
        return {**self._head("chat.completion"), "choices": choices, "usage": self.usage(), **self._extension()}

    def role_chunk(self, choice: Choice) -> dict[str, Any]:
        """The first chunk of a chat choice: it names the role."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def chunk(self, choice: Choice, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"delta": {"content": text} if text else {}} if self.kind == "chat" else {"text": text}
        chunk = self._chunk([{"index": choice.index, **part, "logprobs": None, "finish_reason": choice.finish}])
        return {**chunk, **extension(choice.note)}

    def usage_chunk(self) -> dict[str, Any]:
        return {**self._chunk([]), "usage": self.usage()}

    def end(self, ttft_seconds: float | None, error: str | None) -> RequestEnd:
        usage = self.usage()
        return RequestEnd(
            self.identity,
            tuple(choice.finish for choice in self.choices.values() if choice.finish),
            usage["prompt_tokens"],
            usage["completion_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            ttft_seconds,
            error,
            self._note(),
            merged(choice.phases for choice in self.choices.values() if choice.phases is not None),
        )

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        part: dict[str, Any] = {"message": message} if self.kind == "chat" else {"text": choice.text}
        whole = {"index": choice.index, **part, "logprobs": None, "finish_reason": choice.finish}
        return {**whole, **extension(choice.note)}

    def _head(self, chat_object: str) -> dict[str, Any]:
        name = chat_object if self.kind == "chat" else "text_completion"
        return {"id": self.identity, "object": name, "created": self.created, "model": self.model}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": choices}

    def _note(self) -> IncidentNote | None:
        return next((choice.note for choice in self.choices.values() if choice.note), None)

    def _extension(self) -> dict[str, Any]:
        return extension(self._note())


def extension(note: IncidentNote | None) -> dict[str, Any]:
    """What a client learns of an incident: kind and id, no evidence (design rule 13)."""
    return {} if note is None else {"checkengine": {"kind": note.kind, "incident": note.incident}}
