"""A stream of a chat or a completion under guard: event in, bytes out."""

from __future__ import annotations

from collections.abc import Sequence

from checkengine.engine_shim.proxy import actions
from checkengine.engine_shim.proxy.channel import Told
from checkengine.engine_shim.proxy.dialects import (
    DONE,
    DONE_EVENT,
    Choice,
    Chunk,
    NotReadError,
    as_event,
    body_of,
    chunk_of,
)
from checkengine.engine_shim.proxy.judging import Note
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.stream import payload_of
from checkengine.engine_shim.proxy.watch import AnswerWatch, ChoiceWatch


class StreamWatch:
    """Every event comes out as it went in, except where somebody asked for more than observing."""

    def __init__(self, watch: AnswerWatch, settings: ProxySettings, choices: int) -> None:
        """`choices` is how many the request asked for."""
        self.watch = watch
        self.is_over = False
        """A guard stopped the last choice: nothing more is to be read from upstream."""
        self.is_done = False
        """The end of the stream was seen or written."""
        self.unread = 0
        """Events that are not what a chunk looks like."""
        self.events = 0
        self._operation = watch.facts.operation
        self._reason = settings.finish_reason
        self._tell_all = settings.annotate == "body"
        self._choices = choices
        self.last: Chunk | None = None
        self._told = 0
        """Notes that were told to the client."""

    def push(self, event: bytes) -> bytes:
        payload = payload_of(event)
        if not payload:
            return event
        if payload == DONE:
            return self._done(event)
        try:
            chunk = chunk_of(payload)
        except NotReadError:
            self.unread += 1
            return event
        self.events += 1
        self.last = chunk
        if chunk.usage is not None and isinstance(chunk.usage, dict):
            self.watch.usage = chunk.usage
        return self._read(event, chunk.choices) if chunk.choices else event

    def end(self) -> bytes:
        """The upstream closed the stream. What is to be put before its end."""
        return b"" if self.is_done else self._ends()

    def _read(self, event: bytes, choices: list[Choice]) -> bytes:
        out, has_end = b"", False
        stopped: list[int] = []
        for choice in choices:
            watched = self.watch.choice(choice.index)
            if watched is None:
                continue
            if watched.stopped is not None:
                stopped.append(watched.index)
                continue
            watched.take(choice)
            has_end = has_end or choice.finish_reason is not None
            over = watched.finish_reason is not None and not watched.is_over
            if over or watched.is_due:
                told = watched.end(None) if over else watched.read()
                if told and (stop := self._decide(watched, told)) is not None:
                    stopped.append(watched.index)
                    out += stop
        if stopped:
            event = self._without(event, stopped)
            return event + out + self._finish_if_over()
        return self._annotate(event) if has_end else event

    def _decide(self, choice: ChoiceWatch, told: Sequence[Told]) -> bytes | None:
        """The choice's last event where it is stopped."""
        verdict = self.watch.decide(choice, told)
        if verdict is None or verdict.action is None or verdict.note is None:
            return None
        # A retry comes too late as well: parts of the answer were sent.
        self.watch.stop(choice, verdict.note)
        self._told += sum(note.choice == choice.index for note in verdict.notes)
        return actions.stop_event(self._operation, self.last, choice.index, self._reason, verdict.note)

    def _annotate(self, event: bytes) -> bytes:
        notes = self._untold()
        if not notes:
            return event
        try:
            return actions.annotated(event, notes)
        except ValueError:
            return event

    def _untold(self) -> list[Note]:
        """Notes for the client that it has not got yet."""
        notes = self.watch.notes[self._told :]
        self._told = len(self.watch.notes)
        return notes if self._tell_all else [note for note in notes if note.is_visible]

    def _without(self, event: bytes, stopped: Sequence[int]) -> bytes:
        """The event without choices that are over; empty where it has no others."""
        body = body_of(payload_of(event))
        body["choices"] = [each for each in body["choices"] if each.get("index", 0) not in stopped]
        return as_event(body) if body["choices"] else b""

    def _finish_if_over(self) -> bytes:
        watched = self.watch.choices.values()
        if sum(choice.is_over for choice in watched) < self._choices:
            return b""
        self.is_over = self.is_done = True
        usage = b""
        if self.watch.facts.wants_usage and not self.watch.usage:
            usage = actions.usage_event(self._operation, self.last, 0, sum(choice.chunks for choice in watched))
        return usage + DONE_EVENT

    def _done(self, event: bytes) -> bytes:
        self.is_done = True
        return self._ends() + event

    def _ends(self) -> bytes:
        """Whatever no event said the end of ends here."""
        for choice in self.watch.choices.values():
            if not choice.is_over and (told := choice.end(self.watch.tokens)):
                self.watch.decide(choice, told)
        notes = self._untold()
        return actions.note_event(self._operation, self.last, notes) if notes else b""
