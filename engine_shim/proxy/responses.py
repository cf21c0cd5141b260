"""/v1/responses under guard: its stream of typed events, and its whole answers.

One text, one line of thought and its function calls are read as one choice. A stopped response ends as OpenAI's own
does where a filter stopped it: `response.incomplete` with the reason content_filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from checkengine.engine_shim.proxy import actions
from checkengine.engine_shim.proxy.channel import Told
from checkengine.engine_shim.proxy.dialects import NotReadError, ResponseEvent, as_event, response_event_of, response_of
from checkengine.engine_shim.proxy.judging import Note
from checkengine.engine_shim.proxy.settings import ProxySettings
from checkengine.engine_shim.proxy.stream import payload_of
from checkengine.engine_shim.proxy.watch import AnswerWatch, ChoiceWatch

TEXT = frozenset({"response.output_text.delta", "response.refusal.delta"})
THOUGHT = frozenset({"response.reasoning_text.delta", "response.reasoning_summary_text.delta"})
CALL = "response.function_call_arguments.delta"
ADDED = "response.output_item.added"
MOST_SAID = 1 << 20
"""Characters of an answer that are kept, for the answer as a whole that a stop ends with."""
ENDS = {"response.completed": "stop", "response.incomplete": "length", "response.failed": "error"}


class ResponseStreamWatch:
    """As `StreamWatch`, for the events of /v1/responses."""

    def __init__(self, watch: AnswerWatch, settings: ProxySettings, choices: int = 1) -> None:
        self.watch = watch
        self.is_over = self.is_done = False
        self.unread = self.events = 0
        self._tell_all = settings.annotate == "body"
        self._response: dict[str, Any] = {}
        self._number = 0
        self._said: list[str] = []
        self._said_length = 0

    def push(self, event: bytes) -> bytes:
        payload = payload_of(event)
        if not payload:
            return event
        try:
            found = response_event_of(payload)
        except NotReadError:
            self.unread += 1
            return event
        self.events += 1
        if type(found.sequence_number) is int:
            self._number = found.sequence_number
        choice = self.watch.choice(0)
        assert choice is not None
        end = ENDS.get(found.type) if isinstance(found.type, str) else None
        if found.response:
            self._note_response(found.response)
        self._take(choice, found)
        if end is None and not choice.is_due:
            return event
        choice.finish_reason = self._reason(end)
        told = choice.end(self.watch.tokens) if end else choice.read()
        stopped = self._decide(choice, told)
        if stopped is not None:
            return stopped
        return self._annotated(event) if end else event

    def end(self) -> bytes:
        choice = self.watch.choices.get(0)
        if choice is not None and not choice.is_over and (told := choice.end(self.watch.tokens)):
            self.watch.decide(choice, told)
        return b""

    def _reason(self, end: str | None) -> str | None:
        """`length` only where that is what the response says."""
        details = self._response.get("incomplete_details")
        if end == "length" and isinstance(details, dict) and details.get("reason") != "max_output_tokens":
            return "content_filter"
        return end

    def _note_response(self, raw: msgspec.Raw) -> None:
        try:
            found = msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            return
        if isinstance(found, dict):
            self._response = found
            usage = found.get("usage")
            self.watch.usage = usage if isinstance(usage, dict) else self.watch.usage

    def _take(self, choice: ChoiceWatch, found: ResponseEvent) -> None:
        delta = found.delta
        if found.type in TEXT and isinstance(delta, str):
            if self._said_length < MOST_SAID:
                self._said.append(delta)
                self._said_length += len(delta)
            choice.say(delta)
        elif found.type in THOUGHT and isinstance(delta, str):
            choice.think(delta)
        elif found.type == CALL:
            choice.call_part({"index": found.output_index, "function": {"arguments": delta}})
        elif found.type == ADDED and found.item is not None and found.item.type == "function_call":
            item = found.item
            choice.call_part({"index": found.output_index, "id": item.id, "function": {"name": item.name}})

    def _decide(self, choice: ChoiceWatch, told: Sequence[Told]) -> bytes | None:
        verdict = self.watch.decide(choice, told)
        if verdict is None or verdict.action is None or verdict.note is None:
            return None
        self.watch.stop(choice, verdict.note)
        self.is_over = self.is_done = True
        return self._incomplete(verdict.note)

    def _incomplete(self, note: Note) -> bytes:
        name = "response.incomplete"
        ended: dict[str, Any] = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
        if not self._response.get("output") and self._said:
            content = [{"type": "output_text", "text": "".join(self._said), "annotations": []}]
            item = {"id": "msg_stopped", "type": "message", "role": "assistant", "status": "incomplete"}
            ended["output"] = [item | {"content": content}]
        response = self._response | ended | {actions.FIELD: actions.extension([note])}
        return as_event({"type": name, "sequence_number": self._number + 1, "response": response}, name)

    def _annotated(self, event: bytes) -> bytes:
        notes = [note for note in self.watch.notes if self._tell_all or note.is_visible]
        return actions.annotated(event, notes) if notes else event


def take_whole_response(choice: ChoiceWatch, body: bytes) -> dict[str, object]:
    """Has guards take an answer that is not streamed; returns its usage. Raises NotReadError."""
    found = response_of(body)
    if found.output is None:
        raise NotReadError
    for place, item in enumerate(found.output):
        if item.type == "message" and isinstance(item.content, list):
            for part in item.content:
                if isinstance(part, dict) and isinstance(part.get("text"), str):
                    choice.say(part["text"])
        elif item.type == "function_call":
            function = {"name": item.name, "arguments": item.arguments}
            choice.call_part({"index": place, "id": item.id, "function": function})
    choice.finish_reason = "stop" if found.status == "completed" else "length"
    return found.usage if isinstance(found.usage, dict) else {}


def stopped_response(body: bytes) -> bytes:
    """A whole response that a guard stopped: incomplete, with all its text (its places are counted in characters of all
    its texts together)."""
    answer = msgspec.json.decode(body)
    answer |= {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    return msgspec.json.encode(answer)
