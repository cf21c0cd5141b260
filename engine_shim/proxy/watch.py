"""One answer as guards see it: its choices, read in batches, and what was decided about each."""

from __future__ import annotations

from collections.abc import Sequence

from checkengine.engine_shim.proxy.calls import CallText
from checkengine.engine_shim.proxy.channel import Channel, Told
from checkengine.engine_shim.proxy.dialects import Choice, Delta
from checkengine.engine_shim.proxy.guarding import Bench
from checkengine.engine_shim.proxy.judging import Judge, Note, Verdict
from checkengine.engine_shim.proxy.pace import NAME as LATENCY
from checkengine.engine_shim.proxy.pace import FirstTokens, Pace
from checkengine.engine_shim.proxy.requests import RequestFacts
from checkengine.engine_shim.proxy.rows import LogprobRows
from checkengine.engine_shim.proxy.structure import NAME as STRUCTURE
from checkengine.engine_shim.proxy.structure import Ended, end_findings
from checkengine.guards.action import ActionKind
from checkengine.guards.text import TextStart

OF_REASONING = frozenset({"repetition", "salad"})
"""Guards that also read what a model says to itself: its language and form are its own affair."""
OF_CALLS = frozenset({"tool_calls"})
MOST_CHOICES = 256
MOST_KEPT = 1 << 15
"""Characters of an answer."""


class ChoiceWatch:
    """`take` collects; `read` has guards read what was collected, and `finish` all that is left."""

    def __init__(self, watch: AnswerWatch, index: int) -> None:
        self.index = index
        self.sequence = f"{watch.identity}-{index}"
        self.text = Channel(watch.bench, watch.start)
        self.thought: Channel | None = None
        self.calls: Channel | None = None
        self.rows: LogprobRows | None = None
        self.finish_reason: str | None = None
        self.stopped: Note | None = None
        self.is_over = False
        self._watch = watch
        self._call_text = CallText()
        self._pace = Pace(self.sequence, watch.first_tokens.settings) if watch.first_tokens.is_limited else None
        self._late: list[Told] = []
        self._blank = True
        self.kept: list[str] = []
        """What was said, where it may be scored on a sibling."""
        self.pending = 0
        """Chunks that no guard has read."""
        self._due = watch.bench.first_batch(watch.batch)
        self.chunks = 0
        """That said something: an estimate of its tokens."""

    def take(self, choice: Choice) -> None:
        said = choice.delta or choice.message
        if said is not None:
            self._take_delta(said)
        elif isinstance(choice.text, str) and choice.text:
            self.say(choice.text)
        if choice.logprobs is not None:
            self._take_logprobs(choice.logprobs)
        if isinstance(choice.finish_reason, str):
            self.finish_reason = choice.finish_reason

    def say(self, text: str) -> None:
        self.pending += 1
        self.chunks += 1
        self.text.add(text)
        if self._watch.keeps_text and self.text.length < MOST_KEPT:
            self.kept.append(text)
        if self._blank and not text.isspace():
            self._blank = False

    def think(self, text: str) -> None:
        if self.thought is None:
            self.thought = Channel(self._watch.bench, self._watch.start, OF_REASONING)
        self.pending += 1
        self.chunks += 1
        self.thought.add(text)

    def call(self, text: str) -> None:
        """Of a tool call, as `CallText` writes them."""
        if self.calls is None:
            self.calls = Channel(self._watch.bench, self._watch.start, OF_CALLS)
        self.pending += 1
        self.chunks += 1
        if text:
            self.calls.add(text)

    def call_part(self, delta: dict[str, object]) -> None:
        """One delta of a tool call, in the form that chats have."""
        self.call(self._call_text.push([delta]))

    def wait(self, seconds: float) -> None:
        """Since the chunk before."""
        if self._pace is not None:
            self._late += [(LATENCY, finding) for finding in self._pace.add(seconds)]

    @property
    def is_due(self) -> bool:
        return self.pending >= self._due

    def read(self) -> list[Told]:
        self.pending, self._due = 0, self._watch.batch
        told = self.text.read()
        for channel in (self.thought, self.calls):
            if channel is not None:
                told = [*told, *channel.read()]
        if self.rows is not None:
            told = [*told, *self.rows.read()]
        if self._late:
            told, self._late = [*told, *self._late], []
        return told

    def end(self, tokens: int | None) -> list[Told]:
        """The choice is over, or its stream is."""
        self.is_over = True
        if self._call_text.count:
            self.call(self._call_text.end(cut_off=self.finish_reason == "length"))
        told = self.read() + self.text.end()
        if self.thought is not None:
            told += self.thought.end()
        if self.calls is not None and self.finish_reason != "length":
            told += self.calls.end()
        return told + self._structure(tokens)

    def _structure(self, tokens: int | None) -> list[Told]:
        seen = self.text.length + (self.thought.length if self.thought else 0)
        ended = Ended(
            self.sequence,
            self.finish_reason,
            seen,
            self._blank and self.thought is None,
            self._call_text.count,
            tokens,
            self._watch.facts.limit,
        )
        return self._watch.ask_own(STRUCTURE, lambda: list(end_findings(ended)))

    def _take_delta(self, said: Delta) -> None:
        content = said.content
        if content:
            if isinstance(content, str):
                self.say(content)
            elif isinstance(content, list):
                self.say(
                    "".join(
                        part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
                    )
                )
        thought = said.reasoning_content or said.reasoning
        if thought and isinstance(thought, str):
            self.think(thought)
        if said.tool_calls:
            self.call(self._call_text.push(said.tool_calls))
        if said.function_call:
            self.call(self._call_text.function_call(said.function_call))
        if said.refusal:
            self._blank = False

    def _take_logprobs(self, logprobs: object) -> None:
        if self.rows is None:
            self.rows = LogprobRows(self._watch.bench, self._watch.start)
        self.rows.add(logprobs)


class AnswerWatch:
    """`begin` and `close` frame it. Whatever fails in here costs findings, never the answer."""

    def __init__(
        self, identity: str, facts: RequestFacts, bench: Bench, judge: Judge, first_tokens: FirstTokens, batch: int
    ) -> None:
        self.identity, self.facts, self.bench = identity, facts, bench
        self.first_tokens, self.batch = first_tokens, batch
        self.notes: list[Note] = []
        self.choices: dict[int, ChoiceWatch] = {}
        self.retry: Note | None = None
        self.usage: dict[str, object] = {}
        self.keeps_text = False
        self._judge = judge
        self._start: TextStart | None = None

    def start(self) -> TextStart:
        if self._start is None:
            facts = self.facts
            self._start = TextStart(
                self.identity, facts.prompt, facts.language, facts.tools, facts.stops, facts.stop_is_kept
            )
        return self._start

    def choice(self, index: object) -> ChoiceWatch | None:
        """None for one that no request can have asked for."""
        number = index if type(index) is int else 0
        found = self.choices.get(number)
        if found is None:
            if len(self.choices) >= MOST_CHOICES:
                return None
            found = self.choices[number] = ChoiceWatch(self, number)
            self._judge.begin((found.sequence,))
        return found

    def decide(self, choice: ChoiceWatch, told: Sequence[Told]) -> Verdict | None:
        """None where nothing was found that leads to anything."""
        if not told:
            return None
        verdict = self._judge.judge(choice.sequence, choice.index, told)
        self.notes += verdict.notes
        return verdict if verdict.notes else None

    def stop(self, choice: ChoiceWatch, note: Note) -> None:
        choice.stopped, choice.is_over = note, True
        self._judge.took(note, choice.sequence, ActionKind.STOP)

    def ask_own(self, name: str, check: object, rows: int = 1) -> list[Told]:
        """One of the proxy's own checks."""
        seat = self.bench.seats[name]
        if seat.reason:
            return []
        found = self.bench.run(seat, lambda ask: ask(), check, rows)  # type: ignore[operator]
        return [(name, finding) for finding in found or ()]

    def close(self) -> None:
        self._judge.forget([choice.sequence for choice in self.choices.values()])

    @property
    def tokens(self) -> int | None:
        """Output tokens as the server counted them, of all choices together."""
        for name in ("completion_tokens", "output_tokens"):
            if type(counted := self.usage.get(name)) is int:
                return counted
        return None
