"""What guards see where there is only text: a stream of characters, a conversation, a series of numbers.

Recorded traffic (`checkengine scan`) and the proxy read these; engines read `StepView`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from checkengine.guards.finding import Severity, cause_rank


@dataclass(frozen=True, slots=True)
class TextStart:
    """What is known of a completion before its first character."""

    id: str
    prompt: str = ""
    """The last user turn, with the system prompt before it where there is one."""
    language: str | None = None
    """Expected ISO 639-1 code; without it the prompt is the expectation."""
    tools: tuple[Mapping[str, object], ...] = ()
    """OpenAI tool definitions that the request lists."""
    stops: tuple[str, ...] = ()
    """Stop strings of the request: the text must not hold one (`stop_is_kept`: may end in one)."""
    stop_is_kept: bool = False


@dataclass(frozen=True, slots=True)
class TextFinding:
    """As `Finding`, but placed by character, token, message or time. Evidence holds numbers, never user text."""

    kind: str
    id: str
    """Of the completion, conversation or series."""
    severity: Severity
    guard: str
    at: Mapping[str, float | int]
    """One of {"char": n}, {"token": n}, {"message": n}, {"t": seconds}."""
    version: int = 1
    evidence: Mapping[str, float | int | bool | str] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return cause_rank(self.kind)


class TextGuard(Protocol):
    """Reads one completion; made with its `TextStart`. Its state is bounded whatever the length of the text.

    Splitting the text at other places changes nothing but when a finding is told. Never raises on any text
    (lone surrogates, NUL, 100 MB without a line break).
    """

    name: str
    version: int

    def push(self, piece: str) -> Iterable[TextFinding]: ...

    def end(self) -> Iterable[TextFinding]:
        """The completion is over: what can only be said now (a loop that ended by itself, an open call)."""
        ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """OpenAI chat messages, oldest first, with `tool_calls` and tool results as they came; nothing is checked yet."""

    id: str
    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...] = ()


class ConversationGuard(Protocol):
    """Reads a whole conversation at once; the same conversation grown by a turn gives the same findings and more."""

    name: str
    version: int

    def read(self, conversation: Conversation) -> Iterable[TextFinding]: ...


class SeriesGuard(Protocol):
    """Reads one series of measurements (recorded lines `{"series", "t"?, "value"}`), in the order in which they came.

    Made with (the series' name, its settings); its state is bounded.
    """

    name: str
    version: int

    def push(self, value: float | str | bool, t: float | None = None) -> Iterable[TextFinding]:
        """`value` is a finite number, or a category: a name (a finish reason, say), true or false; `t` is Unix seconds.

        A finding is at {"t": t}, or at the index of the value (from 0) where no time came with it.
        """
        ...

    def end(self) -> Iterable[TextFinding]: ...
