"""One record through the chosen guards. A guard that raises adds nothing for this record; the others go on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from checkengine.guards.failure import place
from checkengine.guards.finding import cause_rank
from checkengine.guards.prompts import PromptOfTurns, text_of
from checkengine.guards.settings import GuardsSettings
from checkengine.guards.text import Conversation, TextFinding, TextStart
from checkengine.scanning.finding_lines import Found
from checkengine.scanning.records import Chat, Completion, Measurement, Record, TokenStream
from checkengine.scanning.registry import (
    GuardUnavailable,
    MakeConversation,
    MakeLogprobs,
    MakeText,
    conversation_makers,
    logprobs_makers,
    text_makers,
)
from checkengine.scanning.token_streams import TokenGuards

Findings = Callable[[], Iterable[TextFinding]]
PIECE = 1 << 16
"""Characters handed to a text guard at once: it need not copy 100 MB."""


@dataclass(frozen=True, slots=True)
class Failure:
    guard: str
    reason: str
    """What was raised where; never the message, which may hold content."""


def failure(guard: str, error: Exception) -> Failure:
    if isinstance(error, GuardUnavailable):
        return Failure(guard, str(error))
    return Failure(guard, f"raised {type(error).__name__} {place(error)}")


@dataclass(slots=True)
class Account:
    """What reading records took, guard by guard: CPU time."""

    nanoseconds: Counter[str] = field(default_factory=Counter)
    """Of `timed` records."""
    timed: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    """All that a guard has read."""

    def count(self, spent: Mapping[str, int], loaded: set[str]) -> None:
        """One record, and the nanoseconds of each guard that read it, however many of its parts. The first record of
        a guard that is not in `loaded` loads its tables and compiles, so that one is not timed."""
        self.records.update(spent.keys())
        known = spent.keys() & loaded
        self.timed.update(known)
        self.nanoseconds.update({guard: spent[guard] for guard in known})
        loaded.update(spent)

    def add(self, other: Account) -> None:
        self.nanoseconds.update(other.nanoseconds)
        self.timed.update(other.timed)
        self.records.update(other.records)


class RecordReader:
    """Holds the guards' factories; not thread-safe. Measurements are not for it: they need the series' order."""

    def __init__(self, names: Sequence[str], settings: GuardsSettings, tokens: TokenGuards | None = None) -> None:
        self._texts = text_makers(names, settings)
        self._logprobs = logprobs_makers(names, settings)
        self._conversations = conversation_makers(names, settings)
        self._tokens = tokens
        self._loaded: set[str] = set()
        self.account = Account()

    def read(self, record: Record) -> tuple[list[Found], list[Failure]]:
        found: list[tuple[str, TextFinding]] = []
        failures: list[Failure] = []
        spent: Counter[str] = Counter()
        for guard, findings in self._readings(record):
            began = time.thread_time_ns()
            told: list[tuple[str, TextFinding]] = []
            try:
                for finding in findings():
                    told.append((guard, finding))
            except Exception as error:
                failures.append(failure(guard, error))
            found += told
            spent[guard] += time.thread_time_ns() - began
        self.account.count(spent, self._loaded)
        found.sort(key=lambda each: (each[1].at.get("message", 0), cause_rank(each[1].kind)))
        return [as_found(record, guard, finding) for guard, finding in found], failures

    def _readings(self, record: Record) -> Iterator[tuple[str, Findings]]:
        if isinstance(record, Completion):
            yield from self._of_text(record.start, record.text)
            yield from self._of_logprobs(record)
        elif isinstance(record, Chat):
            yield from self._of_chat(record)
        elif isinstance(record, TokenStream) and self._tokens is not None:
            yield from self._tokens.readings(record)

    def _of_text(self, start: TextStart, text: str) -> Iterator[tuple[str, Findings]]:
        for name, make in self._texts.items():
            yield name, partial(read_text, make, start, text)

    def _of_logprobs(self, record: Completion) -> Iterator[tuple[str, Findings]]:
        if record.logprobs is not None:
            for name, make in self._logprobs.items():
                yield name, partial(read_logprobs, make, record)

    def _of_chat(self, record: Chat) -> Iterator[tuple[str, Findings]]:
        for name, make in self._conversations.items():
            yield name, partial(read_conversation, make, record.conversation)
        for number, start, text in assistant_turns(record):
            for name, findings in self._of_text(start, text):
                yield name, partial(in_message, findings, number)


def read_text(make: MakeText, start: TextStart, text: str) -> Iterator[TextFinding]:
    guard = make(start)
    for begin in range(0, len(text), PIECE):
        yield from guard.push(text[begin : begin + PIECE])
    yield from guard.end()


def read_logprobs(make: MakeLogprobs, record: Completion) -> Iterable[TextFinding]:
    return make(record.start).read(record.logprobs)


def read_conversation(make: MakeConversation, conversation: Conversation) -> Iterable[TextFinding]:
    return make().read(conversation)


def assistant_turns(record: Chat) -> Iterator[tuple[int, TextStart, str]]:
    """Each message of the assistant that has text, with what it answers: the system prompt and the last user turn."""
    turns = PromptOfTurns()
    for number, message in enumerate(record.conversation.messages):
        turns.add(message)
        if message.get("role") == "assistant" and (text := text_of(message.get("content"))):
            conversation = record.conversation
            yield number, TextStart(conversation.id, turns.prompt, record.language, conversation.tools), text


def in_message(findings: Findings, number: int) -> Iterator[TextFinding]:
    """The same findings, placed by message; where in its text they are becomes evidence."""
    for finding in findings():
        yield replace(finding, at={"message": number}, evidence={**finding.evidence, **finding.at})


def as_found(record: Record, guard: str, finding: TextFinding) -> Found:
    owner: str | int = record.series if isinstance(record, Measurement) else record.id
    at: Mapping[str, float | int] = finding.at
    return Found(owner, finding.kind, finding.severity, guard, at, finding.evidence, isinstance(record, Measurement))
