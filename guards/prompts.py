"""Text of OpenAI chat messages: what guards of text are told of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

PROMPT_END = 1 << 15
"""Characters kept of each end of what a turn answers; guards read less. A conversation copies it for every turn."""


def text_of(content: object) -> str:
    """The text of a message's content: itself, or its text parts one after another; empty for anything else."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def ends_of(text: str) -> str:
    return text if len(text) <= 2 * PROMPT_END else f"{text[:PROMPT_END]}\n{text[-PROMPT_END:]}"


class PromptOfTurns:
    """What a turn of the assistant answers: the system prompt and the last user turn."""

    def __init__(self) -> None:
        self._system, self._user = "", ""

    def add(self, message: Mapping[str, object]) -> None:
        role = message.get("role")
        if role in ("system", "developer"):
            text = text_of(message.get("content"))
            self._system = ends_of(f"{self._system}\n{text}" if self._system else text)
        elif role == "user":
            self._user = ends_of(text_of(message.get("content")))

    @property
    def prompt(self) -> str:
        return f"{self._system}\n\n{self._user}" if self._system else self._user


def prompt_of(messages: Iterable[object]) -> str:
    turns = PromptOfTurns()
    for message in messages:
        if isinstance(message, Mapping):
            turns.add(message)
    return turns.prompt
